package shim

func tryMain(words []string) int { return 0 }
