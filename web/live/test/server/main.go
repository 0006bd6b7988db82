// Command server is the other end in the browser client's tests: a real server
// of package live on a loopback port, with one channel of each kind in both
// profiles, a proxy in front of it that fails when it is told to, and a port for
// the test's own orders, which no fault reaches.
//
// It never leaves the loopback interface and ends by itself after ten minutes.
// What a caller will get wrong: the first line that it prints is a JSON object
// with its three addresses, and everything in it is forgotten when it ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/faultproxy"
	"holdfast/live"
	"holdfast/live/channels"
)

// lifetime bounds a server whose test was killed.
const lifetime = 10 * time.Minute

func main() {
	var o options
	flag.DurationVar(&o.keepalive, "keepalive", 0, "how often the server makes bytes move; 0: the profile's own, negative: never")
	flag.IntVar(&o.maxMessage, "max-message", 1<<10, "bytes that a client's message may have")
	flag.StringVar(&o.target, "target", "", "what the proxy is in front of; absent: these channels")
	flag.StringVar(&o.files, "files", "", "directory served at / of the control address")
	flag.Parse()
	if err := serve(o); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

type options struct {
	keepalive  time.Duration
	maxMessage int
	target     string
	files      string
}

// site is what the test's requests act on.
type site struct {
	opt    options
	addr   string // where the channels are
	proxy  *faultproxy.Proxy
	asked  atomic.Int64 // requests for /v1/access
	inbox  *channels.Inbox
	watch  *channels.Watch
	detail *channels.Detail
	run    *channels.Run
	lease  *channels.Lease

	mu    sync.Mutex
	state map[string]string // of watched and shown things
	// The running server, replaced by a restart.
	live map[string]*live.Server
	http *http.Server
}

func serve(o options) error {
	s := &site{opt: o, state: map[string]string{"a": "waiting", "b": "judging"}}
	if err := s.channels(); err != nil {
		return err
	}
	if err := s.start("127.0.0.1:0"); err != nil {
		return err
	}
	target := o.target
	if target == "" {
		target = s.addr
	}
	var err error
	if s.proxy, err = faultproxy.Loopback(target); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]string{
		"site": s.addr, "proxy": s.proxy.Addr().String(), "control": l.Addr().String(),
	}); err != nil {
		return err
	}
	control := &http.Server{Handler: s.control(), ReadHeaderTimeout: 10 * time.Second}
	time.AfterFunc(lifetime, func() { control.Close() })
	return control.Serve(l)
}

// start serves the channels at addr with new live servers.
func (s *site) start(addr string) error {
	servers := map[string]*live.Server{}
	for _, p := range []*live.Profile{live.Holdfast, live.Hydro} {
		server, err := live.New(live.Options{Profile: p, MaxMessage: s.opt.maxMessage, Keepalive: s.opt.keepalive})
		if err != nil {
			return err
		}
		servers[p.Name] = server
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s.addr = l.Addr().String()
	server := &http.Server{Handler: s.routes(servers), ReadHeaderTimeout: 10 * time.Second}
	s.mu.Lock()
	s.live, s.http = servers, server
	s.mu.Unlock()
	// Ends when restart closes the server, or with the process.
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintln(os.Stderr, "error:", err)
		}
	}()
	return nil
}

// restart shuts the servers down as a planned restart does and serves again at
// the same address after down.
func (s *site) restart(ctx context.Context, spread, down time.Duration) error {
	s.mu.Lock()
	servers, server := s.live, s.http
	s.mu.Unlock()
	for _, l := range servers {
		if err := l.Shutdown(ctx, spread); err != nil {
			return err
		}
	}
	server.Close()
	time.Sleep(down)
	return s.start(s.addr)
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

// routes are what pages reach, through the proxy or past it.
func (s *site) routes(servers map[string]*live.Server) http.Handler {
	mux := http.NewServeMux()
	for name, server := range servers {
		for kind, handler := range map[string]func(r *http.Request) (live.Handler, error){
			"inbox":  func(r *http.Request) (live.Handler, error) { return s.inbox.Channel("alice"), nil },
			"watch":  func(r *http.Request) (live.Handler, error) { return s.watch.Channel(), nil },
			"detail": func(r *http.Request) (live.Handler, error) { return s.detail.Channel(r.FormValue("id")), nil },
			"run":    func(r *http.Request) (live.Handler, error) { return s.run.Channel(), nil },
			"lease":  func(r *http.Request) (live.Handler, error) { return s.lease.Channel("alice", "A"), nil },
			"guarded": func(r *http.Request) (live.Handler, error) {
				if !strings.Contains(r.Header.Get("Sec-WebSocket-Protocol"), "holdfast.bearer.hf_good") {
					return nil, errors.New("revoked")
				}
				return s.inbox.Channel("alice"), nil
			},
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
	mux.HandleFunc("/v1/access", s.access)
	return mux
}

// access says what became of a token, as the relay's does: to any origin, and
// its preflight needs no token.
func (s *site) access(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Headers", "Authorization")
	h.Set("Access-Control-Expose-Headers", "Retry-After, Holdfast-Refusal")
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	s.asked.Add(1)
	if r.Header.Get("Authorization") != "Bearer hf_good" {
		h.Set("Holdfast-Refusal", "token-revoked")
		http.Error(w, "revoked", http.StatusUnauthorized)
	}
}

// control takes the test's orders.
func (s *site) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /post", func(w http.ResponseWriter, r *http.Request) {
		text, err := json.Marshal(r.FormValue("text"))
		if err == nil {
			err = s.inbox.Post(r.Context(), channels.Notice{ID: r.FormValue("id"), At: time.Now(), Data: text})
		}
		answer(w, err)
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
		s.mu.Lock()
		server := s.live[r.FormValue("profile")]
		s.mu.Unlock()
		if server == nil {
			http.NotFound(w, r)
			return
		}
		answer(w, json.NewEncoder(w).Encode(server.Stats()))
	})
	mux.HandleFunc("GET /credit", func(w http.ResponseWriter, r *http.Request) {
		c, err := s.lease.Credit(r.Context(), "alice", "A")
		if err == nil {
			err = json.NewEncoder(w).Encode(c.Total.Milliseconds())
		}
		answer(w, err)
	})
	mux.HandleFunc("POST /shutdown", func(w http.ResponseWriter, r *http.Request) {
		spread, err := time.ParseDuration(r.FormValue("spread"))
		if err == nil {
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
			defer cancel()
			s.mu.Lock()
			server := s.live[r.FormValue("profile")]
			s.mu.Unlock()
			err = server.Shutdown(ctx, spread)
		}
		answer(w, err)
	})
	mux.HandleFunc("POST /restart", func(w http.ResponseWriter, r *http.Request) {
		spread, err := time.ParseDuration(r.FormValue("spread"))
		down, err2 := time.ParseDuration(r.FormValue("down"))
		if err = errors.Join(err, err2); err == nil {
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
			defer cancel()
			err = s.restart(ctx, spread, down)
		}
		answer(w, err)
	})
	mux.HandleFunc("POST /fault", func(w http.ResponseWriter, r *http.Request) { answer(w, s.fault(r)) })
	mux.HandleFunc("GET /path", func(w http.ResponseWriter, r *http.Request) {
		answer(w, json.NewEncoder(w).Encode(map[string]int64{
			"accepted": int64(s.proxy.Accepted()), "links": int64(len(s.proxy.Links())), "asked": s.asked.Load(),
		}))
	})
	if s.opt.files != "" {
		mux.Handle("GET /", http.FileServer(http.Dir(s.opt.files)))
	}
	return mux
}

// fault does one thing to the path: "do" is the fault, "dir" its direction and
// "to" whom it meets: now (the links that are open), next (the one to come) or
// every (each one to come, until disarm).
func (s *site) fault(r *http.Request) error {
	dir, ok := map[string]faultproxy.Direction{"": faultproxy.Both, "both": faultproxy.Both, "up": faultproxy.Up, "down": faultproxy.Down}[r.FormValue("dir")]
	if !ok {
		return fmt.Errorf("no such direction: %q", r.FormValue("dir"))
	}
	var f faultproxy.Fault
	switch do := r.FormValue("do"); do {
	case "resume":
		s.proxy.ResumeAll(dir)
		return nil
	case "disarm":
		s.proxy.Disarm()
		return nil
	case "stall":
		f = faultproxy.Stall(dir)
	case "cut":
		f = faultproxy.Cut(dir)
	case "finish":
		f = faultproxy.Finish(dir)
	case "refuse":
		f = faultproxy.Refuse("")
	case "answer-pings":
		f = faultproxy.AnswerPings(dir)
	case "reclaim-idle":
		limit, err := time.ParseDuration(r.FormValue("limit"))
		if err != nil {
			return err
		}
		f = faultproxy.ReclaimIdle(faultproxy.Reaper{Limit: limit})
	default:
		return fmt.Errorf("no such fault: %q", do)
	}
	if at := r.FormValue("frame"); at != "" {
		n, err := strconv.Atoi(at)
		if err != nil {
			return err
		}
		f = f.At(faultproxy.Frame(n))
	}
	switch to := r.FormValue("to"); to {
	case "", "now":
		s.proxy.Apply(f)
	case "next":
		s.proxy.Arm(f)
	case "every":
		s.proxy.ArmEvery(f)
	default:
		return fmt.Errorf("no such links: %q", to)
	}
	return nil
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
