// Package console is what every command has in common: the streams and the
// environment that the process was given, the flags that all commands share,
// printing for people and for programs, and errors with hints and exit codes.
//
// It reads no argument, environment or standard stream by itself: package cli
// hands them in. What a caller will get wrong: standard output holds the result
// and nothing else, since people pipe it and OpenSSH reads a stream from it;
// everything that is said about the result goes to standard error.
package console

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/http/httpproxy"

	"holdfast/internal/client"
	"holdfast/internal/liveness"
	"holdfast/internal/state"
)

// Globals are the flags of every command.
type Globals struct {
	State    string `name:"state" env:"HOLDFAST_STATE" placeholder:"DIR" type:"path" help:"Directory for keys, tokens and other state (default: $$XDG_STATE_HOME/holdfast)."`
	JSON     bool   `name:"json" env:"HOLDFAST_JSON" help:"Print one JSON object a line."`
	Config   string `name:"config" env:"HOLDFAST_CONFIG" placeholder:"FILE" type:"path" help:"Read flags from a JSON file; flags and environment come before it."`
	LogLevel string `name:"log-level" env:"HOLDFAST_LOG_LEVEL" enum:",debug,info,warn,error" default:"" placeholder:"LEVEL" help:"What to log to standard error: debug, info, warn or error."`
}

// Connection are the flags of every command that makes or holds a connection.
type Connection struct {
	InsecureHTTP bool          `name:"insecure-http" env:"HOLDFAST_INSECURE_HTTP" help:"Allow plain http to another computer: everybody on the way can read the token."`
	Keepalive    time.Duration `name:"keepalive" env:"HOLDFAST_KEEPALIVE" placeholder:"DUR" help:"Send a ping each DUR (at least 5s) for paths that cut quiet connections."`
}

// Validate is called by the parser.
func (c *Connection) Validate() error {
	if c.Keepalive != 0 && c.Keepalive < liveness.MinKeepalive {
		return fmt.Errorf("--keepalive must be at least %s", liveness.MinKeepalive)
	}
	return nil
}

// Streams are the standard streams of a run.
type Streams struct {
	In       *os.File
	Out, Err *os.File
}

// App is what commands run with.
type App struct {
	Streams
	*Globals
	// Program is how the person called this program, for words to type again;
	// StateGiven says that --state must be part of those words.
	Program    string
	StateGiven bool
	// Environ is the environment, Proxy what it says about HTTP proxies.
	Environ []string
	Proxy   *httpproxy.Config
	// Version is this build's.
	Version string
	// Args are those of the process, the program's own name first; Inherited is
	// what the process before an upgrade left for this one, or empty.
	Args      []string
	Inherited string
}

// Getenv finds a variable of the environment.
func (a *App) Getenv(name string) string {
	for _, v := range a.Environ {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// Home is the person's home directory.
func (a *App) Home() (string, error) {
	if home := a.Getenv("HOME"); filepath.IsAbs(home) {
		return home, nil
	}
	return os.UserHomeDir()
}

// DefaultState fills in --state where it is not given.
func (a *App) DefaultState() error {
	if a.State != "" {
		return nil
	}
	base := a.Getenv("XDG_STATE_HOME")
	// The specification of XDG says to ignore a relative path.
	if !filepath.IsAbs(base) {
		home, err := a.Home()
		if err != nil {
			return &Failure{Code: ExitUsage, Err: fmt.Errorf("find the state directory: %w", err), Hint: "give --state DIR"}
		}
		base = filepath.Join(home, ".local", "state")
	}
	a.State = filepath.Join(base, "holdfast")
	return nil
}

// Dir opens the state directory.
func (a *App) Dir() (state.Dir, error) { return state.Open(a.State) }

// Words is a command to type again on this computer.
func (a *App) Words(rest ...string) string {
	w := append([]string{a.Program}, rest...)
	if a.StateGiven {
		w = append(w, "--state", a.State)
	}
	for i := range w {
		w[i] = client.ShellQuote(w[i])
	}
	return strings.Join(w, " ")
}

// Logger writes to standard error, from level on unless --log-level says another.
func (a *App) Logger(level slog.Level) *slog.Logger {
	if a.LogLevel != "" {
		// The parser has checked the word.
		if err := level.UnmarshalText([]byte(a.LogLevel)); err != nil {
			panic("console: log level: " + err.Error())
		}
	}
	o := &slog.HandlerOptions{Level: level}
	if a.JSON {
		return slog.New(slog.NewJSONHandler(a.Err, o))
	}
	return slog.New(slog.NewTextHandler(a.Err, o))
}

// Dialer reaches machines with the flags of a command.
func (a *App) Dialer(c Connection) client.Dialer {
	return client.Dialer{
		Proxy: a.Proxy, InsecureHTTP: c.InsecureHTTP, Keepalive: c.Keepalive,
		// A command that a person waits for says once what went wrong, at its end.
		Log: a.Logger(slog.LevelError),
	}
}

// Self is the absolute path of this program, for other programs to start.
func Self() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program's own path: %w", err)
	}
	return path, nil
}
