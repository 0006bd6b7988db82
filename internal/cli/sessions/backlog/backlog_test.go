package backlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
)

// What is printed slowly is complete and in order, or said not to be.
func TestABacklogLosesNothingUnsaid(t *testing.T) {
	b := New()
	var want, got []string
	for i := range 5000 {
		m := fmt.Sprint(i)
		if err := b.Add(json.RawMessage(m)); err != nil {
			t.Fatal(err)
		}
		want = append(want, m)
		if i%700 == 0 {
			for _, m := range b.Take() {
				got = append(got, string(m))
			}
		}
	}
	<-b.Some
	for _, m := range b.Take() {
		got = append(got, string(m))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d of %d came", len(got), len(want))
	}
	piece := make(json.RawMessage, 1<<20)
	n := 0
	for ; n < 100 && b.Add(piece) == nil; n++ {
	}
	if n != maxBytes>>20 {
		t.Errorf("%d MiB wait", n)
	}
	if err := b.Add(json.RawMessage("1")); !errors.Is(err, ErrFull) {
		t.Errorf("after what was lost: %v", err)
	}
	if kept := len(b.Take()); kept != n {
		t.Errorf("%d of %d are printed", kept, n)
	}
	// What comes after a gap would look as if nothing were missing.
	if err := b.Add(json.RawMessage("1")); !errors.Is(err, ErrFull) {
		t.Errorf("after a gap: %v", err)
	}
}
