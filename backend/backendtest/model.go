package backendtest

func modelChecks() []check { return nil }
