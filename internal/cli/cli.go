// Package cli is the command line: the tree of commands, flags, environment and
// configuration file, what is printed, and exit codes.
//
// It never decides what a byte on the wire means, and never keeps state of its
// own. It is the only package that touches arguments, environment, standard
// streams and the exit code. What a caller will get wrong: standard output holds
// the result and nothing else, since people pipe it and OpenSSH reads a stream
// from it; everything that is said about the result goes to standard error.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"holdfast/internal/state"
)

// Main runs the program and ends the process.
func Main() {
	os.Exit(Run(os.Args, Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// Streams are the standard streams of a run.
type Streams struct {
	In       *os.File
	Out, Err *os.File
}

// globals are the flags of every command.
type globals struct {
	State    string `name:"state" env:"HOLDFAST_STATE" placeholder:"DIR" type:"path" help:"Directory for keys, tokens and other state (default: $$XDG_STATE_HOME/holdfast)."`
	JSON     bool   `name:"json" env:"HOLDFAST_JSON" help:"Print one JSON object a line."`
	Config   string `name:"config" env:"HOLDFAST_CONFIG" placeholder:"FILE" type:"path" help:"Read flags from a JSON file; flags and environment come before it."`
	LogLevel string `name:"log-level" env:"HOLDFAST_LOG_LEVEL" enum:",debug,info,warn,error" default:"" placeholder:"LEVEL" help:"What to log to standard error: debug, info, warn or error."`
}

// commands is the tree.
type commands struct {
	globals

	Up    upCommand    `cmd:"" group:"serve" help:"Run relay and agent for this machine and print a pairing link."`
	Relay relayCommand `cmd:"" group:"serve" help:"Run the relay alone."`
	Agent agentCommand `cmd:"" group:"serve" help:"Run the agent alone, on a relay that exists."`

	Pair    pairCommand    `cmd:"" group:"devices" help:"Print a new pairing link for this machine."`
	Join    joinCommand    `cmd:"" group:"devices" help:"Pair this computer with a machine."`
	Devices devicesCommand `cmd:"" group:"devices" help:"List or revoke the devices that may enter."`

	SSH        sshCommand        `cmd:"" name:"ssh" group:"use" help:"Log in to a paired machine with OpenSSH."`
	Proxy      proxyCommand      `cmd:"" group:"use" help:"Connect standard input and output to a machine (for ProxyCommand)."`
	SSHConfig  sshConfigCommand  `cmd:"" name:"ssh-config" group:"use" help:"Print OpenSSH configuration for the paired machines."`
	Machines   machinesCommand   `cmd:"" group:"use" help:"List machines and whether a device could get in."`
	KnownHosts knownHostsCommand `cmd:"" name:"known-hosts" hidden:"" help:"Explain a host key to OpenSSH (KnownHostsCommand)."`

	Account accountCommand `cmd:"" group:"admin" help:"Manage the accounts of the relay on this computer."`
	Token   tokenCommand   `cmd:"" group:"admin" help:"Manage the tokens of the relay on this computer."`

	Version versionCommand `cmd:"" help:"Print the version."`
}

// app is what commands run with.
type app struct {
	Streams
	*globals
	// program is how the person called this program, for words to type again.
	program string
	// stateGiven says that --state must be part of those words.
	stateGiven bool
	getenv     func(string) string
}

const description = "Reach the terminal sessions on your own machines through a relay that cannot read them."

// exit carries kong's wish to end (after --help) out of its parser.
type exit int

// Run runs the program with its arguments, the program's own name first, and
// returns the exit code.
func Run(args []string, s Streams) (code int) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(exit)
			if !ok {
				panic(r)
			}
			code = int(e)
		}
	}()
	tree := &commands{}
	config := &configFile{}
	parser, err := kong.New(tree,
		kong.Name("holdfast"),
		kong.Description(description),
		kong.Writers(s.Out, s.Err),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.Resolvers(config),
		kong.ExplicitGroups([]kong.Group{
			{Key: "serve", Title: "On a machine that is to be reached:"},
			{Key: "devices", Title: "Devices:"},
			{Key: "use", Title: "From a paired computer:"},
			{Key: "admin", Title: "On the relay's computer:"},
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
	)
	if err != nil {
		panic("cli: the command tree is wrong: " + err.Error())
	}
	program := ""
	if len(args) > 0 {
		program, args = args[0], args[1:]
	}
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	if err := config.load(parser.Model, args); err != nil {
		return report(s.Err, &failure{code: exitUsage, err: err, hint: "see docs/operations.md for the keys"})
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return report(s.Err, usageError(err))
	}
	a := &app{
		Streams: s, globals: &tree.globals, program: programName(program),
		stateGiven: tree.State != "", getenv: os.Getenv,
	}
	if err := a.defaults(); err != nil {
		return report(s.Err, err)
	}
	// The first signal ends the work in order; a second one ends the process,
	// because stop gives the signals their own meaning back.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop)
	parsed.BindTo(ctx, (*context.Context)(nil))
	return report(s.Err, parsed.Run(a))
}

// programName is what to type to call this program again: its short name where
// the PATH leads to it, else as it was called now.
func programName(called string) string {
	own, err := os.Executable()
	if err != nil || called == "" {
		return "holdfast"
	}
	if found, err := exec.LookPath("holdfast"); err == nil {
		a, errA := os.Stat(found)
		b, errB := os.Stat(own)
		if errA == nil && errB == nil && os.SameFile(a, b) {
			return "holdfast"
		}
	}
	return called
}

// usageError turns a parser's error into one that says where to read on.
func usageError(err error) error {
	hint := "see holdfast --help"
	var pe *kong.ParseError
	if errors.As(err, &pe) && pe.Context != nil {
		if node := pe.Context.Selected(); node != nil {
			hint = "see " + "holdfast " + node.Path()[len("holdfast "):] + " --help"
		}
	}
	return &failure{code: exitUsage, err: err, hint: hint}
}

// defaults fills in what depends on the environment.
func (a *app) defaults() error {
	if a.State != "" {
		return nil
	}
	base := a.getenv("XDG_STATE_HOME")
	// The specification of XDG says to ignore a relative path.
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return &failure{code: exitUsage, err: fmt.Errorf("find the state directory: %w", err), hint: "give --state DIR"}
		}
		base = filepath.Join(home, ".local", "state")
	}
	a.State = filepath.Join(base, "holdfast")
	return nil
}

// dir opens the state directory.
func (a *app) dir() (state.Dir, error) { return state.Open(a.State) }

// words is a command to type again on this computer.
func (a *app) words(rest ...string) string {
	w := []string{a.program}
	w = append(w, rest...)
	if a.stateGiven {
		w = append(w, "--state", a.State)
	}
	for i := range w {
		w[i] = shellWord(w[i])
	}
	return strings.Join(w, " ")
}

// logger writes to standard error, from level on unless --log-level says another.
func (a *app) logger(level slog.Level) *slog.Logger {
	if a.LogLevel != "" {
		// kong has checked the word.
		if err := level.UnmarshalText([]byte(a.LogLevel)); err != nil {
			panic("cli: log level: " + err.Error())
		}
	}
	o := &slog.HandlerOptions{Level: level}
	if a.JSON {
		return slog.New(slog.NewJSONHandler(a.Err, o))
	}
	return slog.New(slog.NewTextHandler(a.Err, o))
}

// self is the absolute path of this program, for other programs to start.
func self() (string, error) {
	path, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program's own path: %w", err)
	}
	return path, nil
}

// readSecret reads a secret of one line from a file, or "-" for standard input.
func (a *app) readSecret(what, path string) (string, error) {
	const limit = 4 << 10 // every secret is one line of at most 1 KiB
	var b []byte
	var err error
	if path == "-" {
		b, err = io.ReadAll(io.LimitReader(a.In, limit+1))
	} else {
		b, err = state.ReadFile(path, limit)
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", what, err)
	}
	if len(b) > limit {
		return "", fmt.Errorf("read %s: more than %d bytes", what, limit)
	}
	return strings.TrimSpace(string(b)), nil
}
