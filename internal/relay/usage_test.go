package relay

import (
	"testing"
)

// What an operator is told about tokens: how many streams are open, of the
// device that asked and of the agent that serves, and from how many addresses.
func TestUsesOfTokens(t *testing.T) {
	g := newRig(t)
	a := g.ready("mini")
	device, idle := g.deviceToken(), g.deviceToken()
	first, _ := g.pair(a, device)
	g.pair(a, device)
	ask := func() map[string]TokenUse {
		return g.relay.Uses([]string{a.token.ID, device.ID, idle.ID, "t-unknown"})
	}
	eventually(t, "both streams are joined", func() bool { return ask()[a.token.ID].Streams == 2 })
	uses := ask()
	if uses[device.ID] != (TokenUse{Streams: 2, Addresses: 1}) || uses[a.token.ID].Addresses != 1 {
		t.Errorf("got %+v", uses)
	}
	if uses[idle.ID] != (TokenUse{}) || uses["t-unknown"] != (TokenUse{}) || len(uses) != 4 {
		t.Errorf("got %+v", uses)
	}
	if n := g.metric("holdfast_relay_token_addresses_max"); n != 1 {
		t.Errorf("the metric says %v addresses", n)
	}
	_ = first.CloseNow()
	eventually(t, "one is gone", func() bool {
		uses := ask()
		return uses[device.ID].Streams == 1 && uses[a.token.ID].Streams == 1
	})
}
