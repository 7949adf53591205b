module github.com/goidem/idem

go 1.26
