package doctor

import (
	"testing"
	"time"
)

func TestSummarize(t *testing.T) {
	const s = time.Second
	alive := func(q Quiet, ages ...time.Duration) (out []Sample) {
		for _, a := range ages {
			out = append(out, Sample{Quiet: q, Age: a, Alive: true})
		}
		return out
	}
	dead := func(q Quiet, ended time.Duration, ages ...time.Duration) (out []Sample) {
		for _, a := range ages {
			out = append(out, Sample{Quiet: q, Age: a, Ended: ended})
		}
		return out
	}
	join := func(lists ...[]Sample) (out []Sample) {
		for _, l := range lists {
			out = append(out, l...)
		}
		return out
	}
	for name, c := range map[string]struct {
		samples   []Sample
		keepalive time.Duration
		both      PathLimit
	}{
		"a path without a limit": {
			join(alive(QuietBoth, 16*s, 61*s, 401*s), alive(QuietDown, 16*s, 61*s, 401*s), alive(QuietUp, 16*s, 61*s, 401*s)),
			0, PathLimit{QuietBoth, 401 * s, 0, false}},
		"a proxy that closes after 60 s without a word": {
			join(alive(QuietBoth, 16*s, 31*s, 46*s), dead(QuietBoth, 60*s, 61*s, 121*s), alive(QuietDown, 121*s), alive(QuietUp, 121*s)),
			30 * s, PathLimit{QuietBoth, 46 * s, 60 * s, true}},
		"an edge that forgets after 15 s and says nothing": {
			join(alive(QuietBoth, 10*s), dead(QuietBoth, 0, 16*s, 31*s), alive(QuietDown, 31*s), alive(QuietUp, 31*s)),
			5 * s, PathLimit{QuietBoth, 10 * s, 16 * s, false}},
		"nothing survives": {
			dead(QuietBoth, 0, 10*s, 16*s), 5 * s, PathLimit{QuietBoth, 0, 10 * s, false}},
		"only the relay's words count as life": {
			join(alive(QuietBoth, 46*s), dead(QuietBoth, 0, 61*s), alive(QuietDown, 46*s), dead(QuietDown, 0, 61*s, 401*s), alive(QuietUp, 46*s, 401*s)),
			30 * s, PathLimit{QuietBoth, 46 * s, 61 * s, false}},
		"one lucky connection proves nothing": {
			join(alive(QuietBoth, 10*s, 46*s), dead(QuietBoth, 0, 31*s)), 5 * s, PathLimit{QuietBoth, 10 * s, 31 * s, false}},
	} {
		t.Run(name, func(t *testing.T) {
			r := summarize(c.samples)
			if r.Keepalive != c.keepalive {
				t.Errorf("keepalive %v, want %v", r.Keepalive, c.keepalive)
			}
			if len(r.Limits) != 3 || r.Limits[0] != c.both {
				t.Errorf("limits %+v, want first %+v", r.Limits, c.both)
			}
		})
	}
}
