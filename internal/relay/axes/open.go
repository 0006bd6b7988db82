package axes

// Open is how many streams each token has open here, those that have none left
// out: for a device's token the streams that it asked for, for an agent's the
// dial-backs that were paired.
func (a *Axes) Open() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]int)
	for id, tok := range a.tokens {
		n := int(tok.streams)
		for m := tok.first; m != nil; m = m.inToken.next {
			if m.role == Agent {
				n++
			}
		}
		if n > 0 {
			out[id] = n
		}
	}
	return out
}
