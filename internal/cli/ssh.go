package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"

	"holdfast/internal/client"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// minKeepalive is the shortest interval of --keepalive: below it a phone's
// radio never sleeps, and no path that is known needs it.
const minKeepalive = 5 * time.Second

// connection are the flags of every command that makes or holds a connection.
type connection struct {
	InsecureHTTP bool          `name:"insecure-http" env:"HOLDFAST_INSECURE_HTTP" help:"Allow plain http to another computer: everybody on the way can read the token."`
	Keepalive    time.Duration `name:"keepalive" env:"HOLDFAST_KEEPALIVE" placeholder:"DUR" help:"Send a ping each DUR (at least 5s) for paths that cut quiet connections."`
}

// Validate is called by the parser.
func (c *connection) Validate() error {
	if c.Keepalive != 0 && c.Keepalive < minKeepalive {
		return fmt.Errorf("--keepalive must be at least %s", minKeepalive)
	}
	return nil
}

// proxies are the HTTP proxies of the environment.
func (a *app) proxies() *httpproxy.Config { return httpproxy.FromEnvironment() }

// openSSH says how OpenSSH reaches machines through this very program.
func (a *app) openSSH(ctx context.Context, dir state.Dir, c connection) (client.OpenSSH, error) {
	binary, err := self()
	if err != nil {
		return client.OpenSSH{}, err
	}
	return client.OpenSSH{
		Store: client.NewStore(dir), Binary: binary,
		KnownHostsCommand: hasKnownHostsCommand(ctx),
		InsecureHTTP:      c.InsecureHTTP, Keepalive: c.Keepalive,
	}, nil
}

var opensshVersion = regexp.MustCompile(`^OpenSSH_(?:for_Windows_)?(\d+)\.(\d+)`)

// hasKnownHostsCommand asks the installed OpenSSH for its version: an option
// that it does not know would stop it.
func hasKnownHostsCommand(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ssh", "-V").CombinedOutput()
	if err != nil {
		return false
	}
	m := opensshVersion.FindStringSubmatch(string(out))
	if m == nil {
		return false
	}
	major, err1 := strconv.Atoi(m[1])
	minor, err2 := strconv.Atoi(m[2])
	return err1 == nil && err2 == nil && (major > 8 || major == 8 && minor >= 5)
}

// parseService reads --service; "sshd" is the machine's own sshd, which the
// protocol leaves unnamed.
func parseService(s string) (wire.ServiceName, error) {
	if s == "" || s == "sshd" {
		return "", nil
	}
	name, err := wire.ParseServiceName(s)
	if err != nil {
		return "", &failure{code: exitUsage, err: fmt.Errorf("--service: %w", err)}
	}
	return name, nil
}

type sshCommand struct {
	connection
	Service string   `name:"service" placeholder:"NAME" help:"Service to use instead of the machine's default: ssh (built in) or sshd."`
	Machine string   `arg:"" help:"Machine, as holdfast machines lists it; USER@MACHINE for another user."`
	Args    []string `arg:"" optional:"" passthrough:"" help:"Arguments of ssh(1) and the remote command."`
}

// Help is shown by --help.
func (*sshCommand) Help() string {
	return "Runs OpenSSH with this program as its ProxyCommand and the host keys that pairing pinned. " +
		"What follows the machine's name is for ssh(1): options first, then the remote command."
}

// Run replaces this process with OpenSSH.
func (c *sshCommand) Run(ctx context.Context, a *app) error {
	options, long, command := client.SplitSSHArgs(c.Args, func(name string) bool {
		return name != "insecure-http" && name != "json"
	})
	if err := c.takeLong(a, long); err != nil {
		return &failure{code: exitUsage, err: err, hint: "see holdfast ssh --help; put -- before a remote command that begins with a dash"}
	}
	dir, err := a.dir()
	if err != nil {
		return err
	}
	user, name := "", c.Machine
	if at := strings.LastIndexByte(name, '@'); at >= 0 {
		user, name = name[:at], name[at+1:]
	}
	o, err := a.openSSH(ctx, dir, c.connection)
	if err != nil {
		return err
	}
	m, err := o.Store.Find(name)
	if err != nil {
		return err
	}
	if user != "" {
		options = append(options, "-l", user)
	}
	service := m.Service
	if c.Service != "" {
		if service, err = parseService(c.Service); err != nil {
			return err
		}
	}
	args, err := o.Args(m, service, options, command)
	if err != nil {
		return err
	}
	ssh, err := exec.LookPath("ssh")
	if err != nil {
		return &failure{code: exitFailed, err: errors.New("OpenSSH's ssh is not on the PATH"), hint: "install the OpenSSH client"}
	}
	// In place of this process, so that terminal, signals, job control and exit
	// code are ssh's own.
	if err := syscall.Exec(ssh, args, os.Environ()); err != nil {
		return fmt.Errorf("start %s: %w", ssh, err)
	}
	return nil
}

// takeLong reads those of our flags that stand behind the machine's name. ssh(1)
// has no long options, so there is nothing to confuse them with.
func (c *sshCommand) takeLong(a *app, long []string) error {
	for i := 0; i < len(long); i++ {
		name, value, hasValue := strings.Cut(long[i][2:], "=")
		switch name {
		case "json":
			continue
		case "insecure-http":
			c.InsecureHTTP = true
			continue
		case "state", "service", "keepalive":
		default:
			return fmt.Errorf("unknown flag --%s", name)
		}
		if !hasValue {
			i++
			if i == len(long) {
				return fmt.Errorf("--%s needs a value", name)
			}
			value = long[i]
		}
		switch name {
		case "state":
			a.State, a.stateGiven = value, true
		case "service":
			c.Service = value
		case "keepalive":
			d, err := time.ParseDuration(value)
			if err != nil {
				return fmt.Errorf("--keepalive: %w", err)
			}
			c.Keepalive = d
			if err := c.connection.Validate(); err != nil {
				return err
			}
		}
	}
	return nil
}

type sshConfigCommand struct {
	connection
	Install bool `help:"Write the configuration into the state directory and include it in ~/.ssh/config."`
}

// Run prints or installs the configuration.
func (c *sshConfigCommand) Run(ctx context.Context, a *app) error {
	dir, err := a.dir()
	if err != nil {
		return err
	}
	o, err := a.openSSH(ctx, dir, c.connection)
	if err != nil {
		return err
	}
	if !c.Install {
		text, err := o.ConfigText()
		if err != nil {
			return err
		}
		if a.JSON {
			return a.emit(map[string]string{"config": text})
		}
		fmt.Fprint(a.Out, text)
		return nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return fmt.Errorf("find ~/.ssh: %w", err)
	}
	changed, err := o.Install(home)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.emit(map[string]any{"installed": dir.Path(state.SSHConfigFile), "changed": changed})
	}
	if changed {
		a.say("~/.ssh/config now includes %s", dir.Path(state.SSHConfigFile))
	} else {
		a.say("~/.ssh/config includes %s already; it is up to date", dir.Path(state.SSHConfigFile))
	}
	return nil
}

type knownHostsCommand struct {
	Service string `name:"service"`
	Machine string `arg:""`
	Reason  string `arg:""`
	Type    string `arg:""`
	Key     string `arg:""`
}

// Run is called by OpenSSH with the key that a host has shown. It prints no key:
// the pinned ones are in the known_hosts file. It says on standard error what
// OpenSSH will not: which key was expected.
func (c *knownHostsCommand) Run(a *app) error {
	if c.Reason != "HOSTNAME" {
		return nil
	}
	dir, err := a.dir()
	if err != nil {
		return err
	}
	service, err := parseService(c.Service)
	if err != nil {
		return err
	}
	store := client.NewStore(dir)
	m, err := store.Find(c.Machine)
	if err != nil {
		return err
	}
	pinned, err := store.PinnedKeys(m, service)
	if err != nil {
		return err
	}
	got, err := client.DescribeKey(c.Type + " " + c.Key)
	if err != nil {
		return err
	}
	var want []string
	for _, k := range pinned {
		if k.Line() == c.Type+" "+c.Key {
			return nil
		}
		want = append(want, k.Type()+" "+k.Fingerprint())
	}
	slices.Sort(want)
	report(a.Err, &failure{
		code: exitDenied,
		err:  fmt.Errorf("host key of %q does not match: it showed %s, pinned is %s", m.Name, got, strings.Join(want, " or ")),
		hint: "somebody may be in between; if you know that the machine was set up anew, pair with it again",
	})
	return nil
}
