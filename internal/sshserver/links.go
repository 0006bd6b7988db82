package sshserver

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"holdfast/internal/pairing"
)

// maxLinks bounds the links open at once; a further one closes the oldest. One
// on the screen, one for the person next to it.
const maxLinks = 8

// link is one open pairing link.
type link struct {
	secret  pairing.Secret
	expires time.Time
	wrong   int         // wrong proofs since it was opened
	bound   pairing.Key // the device key that it belongs to; zero for nobody yet
}

// links are the open pairing links.
type links struct {
	// mu guards open.
	mu   sync.Mutex
	open []*link
}

// LinkStatus describes an open pairing link.
type LinkStatus struct {
	Expires time.Time
	Wrong   int         // wrong proofs so far
	Bound   pairing.Key // the device key that it belongs to; zero for nobody yet
}

// OpenLink lets devices pair that know secret, until expires, which is at most
// pairing.TTL away.
func (s *Server) OpenLink(secret pairing.Secret, expires time.Time) error {
	now := time.Now()
	switch {
	case secret.IsZero():
		return errors.New("open pairing link: no secret")
	case !expires.After(now):
		return errors.New("open pairing link: its time is over already")
	case expires.After(now.Add(pairing.TTL + time.Second)): // a link's expiry has whole seconds
		return fmt.Errorf("open pairing link: it may be open for %v at most", pairing.TTL)
	}
	s.links.mu.Lock()
	defer s.links.mu.Unlock()
	s.links.prune(now)
	if slices.ContainsFunc(s.links.open, func(l *link) bool { return l.secret == secret }) {
		return errors.New("open pairing link: it is open already")
	}
	s.links.open = append(s.links.open, &link{secret: secret, expires: expires})
	if n := len(s.links.open) - maxLinks; n > 0 {
		s.links.open = slices.Delete(s.links.open, 0, n)
	}
	return nil
}

// CloseLink closes a pairing link, if it is open.
func (s *Server) CloseLink(secret pairing.Secret) {
	s.links.mu.Lock()
	defer s.links.mu.Unlock()
	s.links.open = slices.DeleteFunc(s.links.open, func(l *link) bool { return l.secret == secret })
}

// Link describes a pairing link; false when it is not open any more.
func (s *Server) Link(secret pairing.Secret) (LinkStatus, bool) {
	s.links.mu.Lock()
	defer s.links.mu.Unlock()
	s.links.prune(time.Now())
	for _, l := range s.links.open {
		if l.secret == secret {
			return LinkStatus{Expires: l.expires, Wrong: l.wrong, Bound: l.bound}, true
		}
	}
	return LinkStatus{}, false
}

// prune drops links whose time is over. Callers hold mu.
func (ls *links) prune(now time.Time) {
	ls.open = slices.DeleteFunc(ls.open, func(l *link) bool { return !now.Before(l.expires) })
}

func (ls *links) anyOpen(now time.Time) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.prune(now)
	return len(ls.open) > 0
}

// try looks for the link that proof belongs to and binds it to key. A wrong
// proof counts against every open link, since nobody can say for which it was
// meant; those that it closes are returned.
func (ls *links) try(proof pairing.Proof, b pairing.Binding, key pairing.Key, now time.Time) (code pairing.Code, closed []pairing.Secret) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.prune(now)
	if len(ls.open) == 0 {
		return pairing.CodeExpired, nil
	}
	for _, l := range ls.open {
		if !l.secret.Verify(proof, b) {
			continue
		}
		if !l.bound.IsZero() && l.bound != key {
			return pairing.CodeBound, nil
		}
		l.bound = key
		return "", nil
	}
	for _, l := range ls.open {
		if l.wrong++; l.wrong >= pairing.MaxProofs {
			closed = append(closed, l.secret)
		}
	}
	ls.open = slices.DeleteFunc(ls.open, func(l *link) bool { return l.wrong >= pairing.MaxProofs })
	return pairing.CodeProof, closed
}

// closeBound closes the links that belong to a key.
func (ls *links) closeBound(key pairing.Key) (closed []pairing.Secret) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.open = slices.DeleteFunc(ls.open, func(l *link) bool {
		if l.bound == key {
			closed = append(closed, l.secret)
		}
		return l.bound == key
	})
	return closed
}
