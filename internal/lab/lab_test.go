package lab

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every scene ends well, in less than a minute, and leaves nothing behind.
func TestEveryScenePlays(t *testing.T) {
	var wait sync.WaitGroup
	for _, scene := range Scenes() {
		wait.Go(func() { // they only wait: side by side
			began := time.Now()
			who := map[string]int{}
			err := Run(t.Context(), scene.Name, func(l Line) {
				who[l.Who]++
				t.Logf("%-15s %6.1f s  %-7s %s", l.Scene, l.At, l.Who, l.Text)
			})
			took := time.Since(began)
			t.Logf("%s took %v: %v", scene.Name, took.Round(time.Second), who)
			if err != nil {
				t.Error(err)
			}
			if took > time.Minute {
				t.Errorf("%s took %v, want under a minute", scene.Name, took)
			}
			if len(who) < 3 {
				t.Errorf("%s: only %v spoke", scene.Name, who)
			}
		})
	}
	wait.Wait()
}

func TestUnknownScene(t *testing.T) {
	if err := Run(t.Context(), "nope", func(Line) {}); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v", err)
	}
}

func TestSceneHeedsItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the person has gone")
	began := time.Now()
	err := Run(ctx, "old-relay", func(l Line) {
		cancel(gone)
	})
	if !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("took %v to end", took)
	}
}
