//go:build !linux

package park

import "errors"

// Freeze returns nothing: no connection here can be handed over.
func (l *Lot) Freeze() []Frozen { return nil }

// Thaw does nothing.
func (l *Lot) Thaw() {}

// Adopt is an error here.
func (l *Lot) Adopt(Frozen, Handler) (*Conn, error) {
	return nil, errors.New("adopt a connection: this system cannot")
}
