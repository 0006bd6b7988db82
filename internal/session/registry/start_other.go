//go:build !linux

package registry

// Start is not known here; the caller compares what it knows.
func Start(int) string { return "" }

func machineID() string { return "" }
