package here

import (
	"context"
	"net/url"
	"path/filepath"
	"time"

	"holdfast/internal/session/proto"
	"holdfast/internal/session/push"
	"holdfast/internal/state"
	"holdfast/internal/webpush"
)

// syncTime bounds the wait for the first look at every tmux server. One that
// hangs must not keep the others' sessions from calling.
const syncTime = 20 * time.Second

// PushOptions are those of calling devices.
type PushOptions struct {
	// Known says whether a device is still let in; required.
	Known func(device string) bool
	// Proxy chooses the proxy to a push service; nil means none.
	Proxy func(*url.URL) (*url.URL, error)
}

// callers reads whom to call.
func (h *Here) callers(o PushOptions) error {
	sender := webpush.NewClient(o.Proxy)
	p, err := push.New(push.Options{
		File: filepath.Join(h.o.StateDir, state.PushFile), Looking: h.looks.looking, Known: o.Known,
		Send: sender.Send, Log: h.o.Log,
	})
	if err != nil {
		sender.Close()
		return err
	}
	h.sender = sender
	h.push, h.backend.Push, h.looks.away = p, p, p.LookedAway
	return nil
}

// call begins to call devices, where that is wanted.
func (h *Here) call() {
	if h.push == nil {
		return
	}
	// Both ended and waited for by Close.
	h.wg.Go(func() {
		h.push.Run(h.ctx)
		h.sender.Close()
	})
	h.wg.Go(func() {
		// What waits is known once every server was looked at: otherwise calls
		// would be taken back at each start.
		ctx, cancelReady := context.WithTimeout(h.ctx, syncTime)
		h.watch.Ready(ctx) // an error means that what is known by now is all
		cancelReady()
		all, changes, cancel := sessions{h}.Subscribe(h.ctx)
		defer cancel()
		h.push.Sync(all)
		for {
			select {
			case <-h.ctx.Done():
				return
			case e, ok := <-changes:
				switch {
				case !ok:
					return
				case e.Session != nil:
					h.push.Changed(*e.Session)
				default:
					h.push.Gone(e.Gone)
				}
			}
		}
	})
}

// PushStates says how it stands with the devices that asked to be called, by
// their ids.
func (h *Here) PushStates() map[string]proto.PushState {
	if h.push == nil {
		return nil
	}
	return h.push.States()
}

// ForgetDevices ends that devices are called which are not let in any more.
func (h *Here) ForgetDevices() error {
	if h.push == nil {
		return nil
	}
	return h.push.Forget()
}
