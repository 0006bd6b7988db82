package up

import (
	"context"
	"errors"
	"testing"

	"holdfast/internal/local"
	"holdfast/internal/state"
)

// TestRelayTellsUses asks the socket of a relay that runs, and one that has ended.
func TestRelayTellsUses(t *testing.T) {
	dir := testDir(t)
	r, err := StartRelay(context.Background(), RelayOptions{
		Listen: "127.0.0.1:0", StorePath: dir.Path(state.StoreFile), Dir: dir, Log: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	a, err := local.AskRelay(ctx, dir, local.Request{Op: local.OpTokens, Tokens: []string{"t-1"}})
	if use, ok := a.Tokens["t-1"]; err != nil || a.Error != "" || !ok || use != (local.TokenUse{}) {
		t.Errorf("got %+v, %v", a, err)
	}
	if a, err = local.AskRelay(ctx, dir, local.Request{Op: local.OpPair}); err != nil || a.Error == "" {
		t.Errorf("a question for an agent: %+v, %v", a, err)
	}
	a, err = local.AskRelay(ctx, dir, local.Request{Op: local.OpTokens, Tokens: make([]string, local.MaxTokens+1)})
	if err != nil || a.Error == "" {
		t.Errorf("too many tokens: %+v, %v", a, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := local.AskRelay(ctx, dir, local.Request{Op: local.OpTokens}); !errors.Is(err, state.ErrNotRunning) {
		t.Errorf("after its end: %v", err)
	}
}
