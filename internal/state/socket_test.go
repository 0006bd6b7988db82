package state

import "testing"

// TestSocketOfASuccessorStays: while one process hands over to another, both
// have listened; the end of the first must not take the second's socket away.
func TestSocketOfASuccessorStays(t *testing.T) {
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	first, err := d.Listen(RelaySocket)
	if err != nil {
		t.Fatal(err)
	}
	second, err := d.Listen(RelaySocket)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	c, err := d.Dial(t.Context(), RelaySocket)
	if err != nil {
		t.Fatalf("the successor cannot be reached: %v", err)
	}
	c.Close()
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if d.Has(RelaySocket) {
		t.Error("the socket is left behind")
	}
}
