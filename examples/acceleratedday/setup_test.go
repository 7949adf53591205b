package main

import (
	"testing"

	"github.com/goidem/idem/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }
