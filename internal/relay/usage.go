package relay

// TokenUse is what this process alone knows about a token.
type TokenUse struct {
	// Streams are open now: those that a device asked for, or that an agent
	// serves.
	Streams int
	// Addresses is from how many the token was used within the last hour,
	// counted up to gate.MaxOrigins; IPv6 by /64.
	Addresses int
}

// Uses says what is known about the tokens with those ids.
func (r *Relay) Uses(ids []string) map[string]TokenUse {
	open := r.axes.Open()
	out := make(map[string]TokenUse, len(ids))
	for _, id := range ids {
		out[id] = TokenUse{Streams: open[id], Addresses: r.gate.Origins(id)}
	}
	return out
}
