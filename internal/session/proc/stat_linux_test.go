package proc

import "testing"

func TestStatWithAnyName(t *testing.T) {
	p, err := parseStat(7, []byte("7 (a) b (c) S 1 7 7 34817 9 4194304 0 0 0 0 1 2 3 4 20 0 1 0 12345 1 1\n"))
	if err != nil || p.Name != "a) b (c" || p.Parent != 1 || p.Group != 7 || p.Terminal != 34817 || p.Foreground != 9 || p.Start != "12345" {
		t.Errorf("%+v, %v", p, err)
	}
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("7 (a) S 1 7 7 34817 9 4194304 0 0 0 0 1 2 3 4 20 0 1 0 12345 1 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := parseStat(1, b); err == nil && p.Start == "" {
			t.Fatalf("%+v", p)
		}
	})
}
