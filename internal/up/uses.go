package up

import (
	"context"
	"fmt"

	"holdfast/internal/local"
)

// answer is what the relay tells another process of this user.
func (r *Relay) answer(_ context.Context, q local.Request) local.Answer {
	switch {
	case q.Op != local.OpTokens:
		return local.Answer{Error: fmt.Sprintf("this relay does not know what %q asks", q.Op)}
	case len(q.Tokens) > local.MaxTokens:
		return local.Answer{Error: fmt.Sprintf("more than %d tokens in one question", local.MaxTokens)}
	}
	out := make(map[string]local.TokenUse, len(q.Tokens))
	for id, use := range r.relay.Uses(q.Tokens) {
		out[id] = local.TokenUse{Streams: use.Streams, Addresses: use.Addresses}
	}
	return local.Answer{Tokens: out}
}
