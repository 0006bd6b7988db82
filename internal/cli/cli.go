// Package cli is the command line: the tree of commands, flags, environment and
// configuration file, what is printed, and exit codes.
//
// It is the only package that touches arguments, environment, standard streams
// and the exit code; the commands themselves are in the packages below it. What
// a caller will get wrong: the first signal asks commands to end and only the
// second ends the process, so every command must heed its context.
package cli

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/net/http/httpproxy"

	"holdfast/internal/cli/admin"
	"holdfast/internal/cli/hooks"
	"holdfast/internal/cli/machines"
	"holdfast/internal/cli/reach"
	"holdfast/internal/cli/serve"
	"holdfast/internal/cli/sessions"
	"holdfast/internal/cli/web"
	"holdfast/internal/console"
	"holdfast/internal/relay/handover"
)

// Main runs the program and ends the process.
func Main() {
	os.Exit(Run(os.Args, console.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// administration are the commands for the relay's computer.
type administration struct {
	Account admin.Account `cmd:"" group:"admin" help:"Manage the accounts of the relay on this computer."`
	Token   admin.Token   `cmd:"" group:"admin" help:"Manage the tokens of the relay on this computer."`
}

// commands is the tree.
type commands struct {
	console.Globals

	Up    serve.Up    `cmd:"" group:"serve" help:"Run relay and agent for this machine and print a pairing link."`
	Relay serve.Relay `cmd:"" group:"serve" help:"Run the relay alone."`
	Agent serve.Agent `cmd:"" group:"serve" help:"Run the agent alone, on a relay that exists."`

	Pair    reach.Pair    `cmd:"" group:"devices" help:"Print a new pairing link for this machine."`
	Join    reach.Join    `cmd:"" group:"devices" help:"Pair this computer with a machine."`
	Devices reach.Devices `cmd:"" group:"devices" help:"List or revoke the devices that may enter."`

	SSH               reach.SSH       `cmd:"" name:"ssh" group:"use" help:"Log in to a paired machine with OpenSSH."`
	Proxy             reach.Proxy     `cmd:"" group:"use" help:"Connect standard input and output to a machine (for ProxyCommand)."`
	SSHConfig         reach.SSHConfig `cmd:"" name:"ssh-config" group:"use" help:"Print OpenSSH configuration for the paired machines."`
	sessions.Commands `embed:""`
	Hooks             hooks.Hooks `cmd:"" group:"sessions" help:"Let coding tools tell what they do."`

	Machines   machines.Machines `cmd:"" group:"use" help:"List machines and whether a device could get in."`
	Doctor     reach.Doctor      `cmd:"" group:"use" help:"Find out at which layer a machine cannot be reached."`
	KnownHosts reach.KnownHosts  `cmd:"" name:"known-hosts" hidden:"" help:"Explain a host key to OpenSSH (KnownHostsCommand)."`

	administration
	Notice admin.Notice `cmd:"" group:"admin" help:"Tell the people of the relay's accounts something."`

	Web web.Web `cmd:"" group:"more" help:"Write the page for phones out, for a host of your own."`

	Lab     labCommand     `cmd:"" group:"more" help:"Watch connections fail on this computer, and what notices it."`
	Version versionCommand `cmd:"" group:"more" help:"Print the version."`
}

const description = "Reach the terminal sessions on your own machines through a relay that cannot read them."

// exit carries kong's wish to end (after --help) out of its parser.
type exit int

// Run runs the program with its arguments, the program's own name first, and
// returns the exit code.
func Run(args []string, s console.Streams) (code int) {
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
			{Key: "sessions", Title: "What runs, and who waits:"},
			{Key: "admin", Title: "On the relay's computer:"},
			{Key: "more", Title: "Besides:"},
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
	)
	if err != nil {
		panic("cli: the command tree is wrong: " + err.Error())
	}
	// For this process only, not for those that it starts.
	inherited := os.Getenv(handover.Env)
	os.Unsetenv(handover.Env)
	program, all := "", args
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
		return console.Report(s.Err, &console.Failure{Code: console.ExitUsage, Err: err, Hint: "see docs/operations.md for the keys"})
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return console.Report(s.Err, usageError(err))
	}
	version, _ := buildVersion()
	a := &console.App{
		Streams: s, Globals: &tree.Globals, Program: programName(program), StateGiven: tree.State != "",
		Environ: os.Environ(), Proxy: httpproxy.FromEnvironment(), Version: version,
		Args: all, Inherited: inherited,
	}
	if err := a.DefaultState(); err != nil {
		return console.Report(s.Err, err)
	}
	// The first signal ends the work in order; a second one ends the process,
	// because stop gives the signals their own meaning back.
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup means that it is to stay so
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	context.AfterFunc(ctx, stop)
	parsed.BindTo(ctx, (*context.Context)(nil))
	return console.Report(s.Err, parsed.Run(a))
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
			hint = "see " + node.FullPath() + " --help"
		}
	}
	return &console.Failure{Code: console.ExitUsage, Err: err, Hint: hint}
}
