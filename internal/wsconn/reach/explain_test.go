package reach

import (
	"testing"
	"time"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	for v, want := range map[string]time.Duration{
		"": 0, "5": 5 * time.Second, " 5 ": 5 * time.Second, "-5": 0, "soon": 0, "99999999999999999999": time.Hour,
		"Mon, 30 Nov 2026 00:01:00 GMT": time.Minute, "Mon, 30 Nov 2020 00:01:00 GMT": 0, "Mon, 30 Nov 2030 00:01:00 GMT": time.Hour,
	} {
		if got := retryAfter(v, now); got != want {
			t.Errorf("%q: %v, want %v", v, got, want)
		}
	}
}
