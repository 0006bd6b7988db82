package doctor_test

import (
	"sync"
	"testing"
	"time"

	"holdfast/internal/doctor"
	"holdfast/internal/faultproxy"
	"holdfast/internal/wire"
)

// measure runs a measurement of a few seconds through the relay at url.
func measure(t *testing.T, r *rig, url string, ages ...time.Duration) doctor.PathReport {
	t.Helper()
	target, err := r.machine.Target(wire.ServiceSSH)
	if err != nil {
		t.Fatal(err)
	}
	target.Relay = url
	var mu sync.Mutex
	heard := 0
	report, err := doctor.MeasurePath(t.Context(), doctor.PathOptions{
		Target: target, Ages: ages, Busy: time.Second,
		OnSample: func(doctor.Sample) { mu.Lock(); heard++; mu.Unlock() },
	})
	if err != nil {
		t.Fatal(err)
	}
	if heard != 3*len(ages) {
		t.Errorf("heard of %d connections, want %d", heard, 3*len(ages))
	}
	return report
}

func TestPathWithoutALimit(t *testing.T) {
	r := newRig(t)
	report := measure(t, r, r.relay.Public.String(), time.Second, 3*time.Second)
	for _, l := range report.Limits {
		if l.Survived != 3*time.Second || l.Died != 0 {
			t.Errorf("%+v, want nothing dead", l)
		}
	}
	if report.Keepalive != 0 {
		t.Errorf("a keepalive of %v on a path without a limit", report.Keepalive)
	}
}

// TestPathWithAReaper measures a middlebox that drops what is idle for two
// seconds: without a word, and with a FIN; and one that counts only what goes to
// the device.
func TestPathWithAReaper(t *testing.T) {
	const limit = 2500 * time.Millisecond
	r := newRig(t)
	for name, c := range map[string]struct {
		reaper  faultproxy.Reaper
		downDie bool // busy towards the relay only
		told    bool
	}{
		"any byte counts, no FIN":                {faultproxy.Reaper{Limit: limit, Counts: faultproxy.AnyByte}, false, false},
		"any byte counts, FIN":                   {faultproxy.Reaper{Limit: limit, Counts: faultproxy.AnyByte, Fin: true}, false, true},
		"only bytes to the device count, no FIN": {faultproxy.Reaper{Limit: limit, Counts: faultproxy.DownBytes}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := faultproxy.Loopback(r.relay.Local.Host)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { p.Close() })
			p.ArmEvery(faultproxy.ReclaimIdle(c.reaper))
			report := measure(t, r, "http://"+p.Addr().String(), time.Second, 6*time.Second)
			want := map[doctor.Quiet]bool{doctor.QuietBoth: true, doctor.QuietDown: c.downDie, doctor.QuietUp: false}
			for _, l := range report.Limits {
				if dead := l.Died > 0; dead != want[l.Quiet] {
					t.Errorf("%+v, want dead %v", l, want[l.Quiet])
				}
				if l.Died > 0 && l.Told != c.told {
					t.Errorf("%+v, want the end announced %v", l, c.told)
				}
			}
			if report.Keepalive != 5*time.Second {
				t.Errorf("keepalive %v, want the least there is", report.Keepalive)
			}
		})
	}
}

func TestPathProbeNeedsAToken(t *testing.T) {
	r := newRig(t)
	target, err := r.machine.Target(wire.ServiceSSH)
	if err != nil {
		t.Fatal(err)
	}
	target.Relay, target.Token = r.relay.Public.String(), wire.NewToken()
	if _, err := doctor.MeasurePath(t.Context(), doctor.PathOptions{Target: target, Ages: []time.Duration{time.Second}}); err == nil {
		t.Error("a stranger could measure")
	}
}
