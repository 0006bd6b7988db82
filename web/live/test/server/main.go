// Command server is the other end in the browser client's tests: a real server
// of package live on a loopback port, with one channel of each kind in both
// profiles and what changes their state.
//
// It never leaves the loopback interface and ends by itself after ten minutes.
// What a caller will get wrong: the first line that it prints is its address,
// and everything in it is forgotten when it ends.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"holdfast/live"
	"holdfast/live/channels"
)

// lifetime bounds a server whose test was killed.
const lifetime = 10 * time.Minute

func main() {
	if err := serve(); err != nil {
		fmt.Println("error:", err)
	}
}

// site is what the test's requests act on.
type site struct {
	servers map[string]*live.Server
	inbox   *channels.Inbox
	watch   *channels.Watch
	detail  *channels.Detail
	run     *channels.Run
	lease   *channels.Lease

	mu    sync.Mutex
	state map[string]string // of watched and shown things
}

func serve() error {
	s := &site{servers: map[string]*live.Server{}, state: map[string]string{"a": "waiting", "b": "judging"}}
	for _, p := range []*live.Profile{live.Holdfast, live.Hydro} {
		server, err := live.New(live.Options{Profile: p, MaxMessage: 1 << 10})
		if err != nil {
			return err
		}
		s.servers[p.Name] = server
	}
	if err := s.channels(); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second}
	time.AfterFunc(lifetime, func() { server.Close() })
	return server.Serve(l)
}

func (s *site) channels() (err error) {
	if s.inbox, err = channels.NewInbox(channels.InboxOptions{Storage: channels.NewMemory()}); err != nil {
		return err
	}
	load := func(id string) (any, bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		status, ok := s.state[id]
		if !ok {
			return nil, false, channels.ErrNoItem
		}
		return map[string]string{"id": id, "status": status}, status == "accepted", nil
	}
	if s.watch, err = channels.NewWatch(channels.WatchOptions{
		Load: func(_ context.Context, _ *live.Conn, id string) (any, error) {
			v, _, err := load(id)
			return v, err
		},
		Coalesce: 10 * time.Millisecond,
	}); err != nil {
		return err
	}
	if s.detail, err = channels.NewDetail(channels.DetailOptions{
		Load:   func(_ context.Context, id string) (any, bool, error) { return load(id) },
		Linger: 200 * time.Millisecond, Throttle: 10 * time.Millisecond,
	}); err != nil {
		return err
	}
	if s.run, err = channels.NewRun(0); err != nil {
		return err
	}
	s.lease, err = channels.NewLease(channels.LeaseOptions{Storage: channels.NewMemory()})
	return err
}

// refused is a channel whose Open fails with the code in the query, or with an
// error frame for code 0.
type refused struct{ code uint16 }

func (h refused) Open(context.Context, *live.Conn) error {
	if h.code == 0 {
		return &live.Error{Name: "PermissionError", Params: []any{"view"}}
	}
	return &live.Refusal{Code: h.code, Reason: "asked for"}
}

func (refused) Message(context.Context, *live.Conn, json.RawMessage) error { return nil }
func (refused) Close(*live.Conn, live.End)                                 {}

func (s *site) routes() http.Handler {
	mux := http.NewServeMux()
	for name, server := range s.servers {
		for kind, handler := range map[string]func(r *http.Request) (live.Handler, error){
			"inbox":  func(r *http.Request) (live.Handler, error) { return s.inbox.Channel("alice"), nil },
			"watch":  func(r *http.Request) (live.Handler, error) { return s.watch.Channel(), nil },
			"detail": func(r *http.Request) (live.Handler, error) { return s.detail.Channel(r.FormValue("id")), nil },
			"run":    func(r *http.Request) (live.Handler, error) { return s.run.Channel(), nil },
			"lease":  func(r *http.Request) (live.Handler, error) { return s.lease.Channel("alice", "A"), nil },
			"refused": func(r *http.Request) (live.Handler, error) {
				code, err := strconv.ParseUint(r.FormValue("code"), 10, 16)
				return refused{uint16(code)}, err
			},
		} {
			mux.Handle("/"+name+"/"+kind, server.Handler(handler))
		}
	}
	mux.HandleFunc("/forbidden", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no", http.StatusForbidden)
	})
	mux.HandleFunc("/v1/access", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer hf_good" {
			w.Header().Set("Holdfast-Refusal", "token-revoked")
			http.Error(w, "revoked", http.StatusUnauthorized)
		}
	})
	mux.HandleFunc("POST /post", func(w http.ResponseWriter, r *http.Request) {
		answer(w, s.inbox.Post(r.Context(), channels.Notice{ID: r.FormValue("id"), At: time.Now(), Data: json.RawMessage(`"hello"`)}))
	})
	mux.HandleFunc("POST /set", func(w http.ResponseWriter, r *http.Request) {
		id := r.FormValue("id")
		s.mu.Lock()
		s.state[id] = r.FormValue("status")
		s.mu.Unlock()
		s.watch.Changed(id)
		s.detail.Changed(id)
	})
	mux.HandleFunc("POST /write", func(w http.ResponseWriter, r *http.Request) {
		_, err := s.run.Write([]byte(r.FormValue("text")))
		answer(w, err)
	})
	mux.HandleFunc("POST /finish", func(w http.ResponseWriter, r *http.Request) { s.run.Finish(0) })
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, r *http.Request) {
		answer(w, json.NewEncoder(w).Encode(s.servers[r.FormValue("profile")].Stats()))
	})
	mux.HandleFunc("POST /shutdown", func(w http.ResponseWriter, r *http.Request) {
		spread, err := time.ParseDuration(r.FormValue("spread"))
		if err == nil {
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
			defer cancel()
			err = s.servers[r.FormValue("profile")].Shutdown(ctx, spread)
		}
		answer(w, err)
	})
	return mux
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
