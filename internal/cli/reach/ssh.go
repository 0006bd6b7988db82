package reach

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"holdfast/internal/client"
	"holdfast/internal/console"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// OpenSSH says how OpenSSH reaches machines through this very program.
func OpenSSH(ctx context.Context, a *console.App, dir state.Dir, c console.Connection) (client.OpenSSH, error) {
	binary, err := console.Self()
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
	return knowsKnownHostsCommand(string(out))
}

func knowsKnownHostsCommand(version string) bool {
	m := opensshVersion.FindStringSubmatch(version)
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
		return "", &console.Failure{Code: console.ExitUsage, Err: fmt.Errorf("--service: %w", err)}
	}
	return name, nil
}

// SSH logs in to a paired machine with OpenSSH.
type SSH struct {
	console.Connection
	Service string   `name:"service" placeholder:"NAME" help:"Service to use instead of the machine's default: ssh (built in) or sshd."`
	Machine string   `arg:"" help:"Machine, as holdfast machines lists it; USER@MACHINE for another user."`
	Args    []string `arg:"" optional:"" passthrough:"" help:"Arguments of ssh(1) and the remote command."`
}

// AfterApply is called by kong, which has taken the first of Args apart by then,
// looking for a flag of its own: "-tt" has become "-t" and "t". It is put back
// as it was typed.
func (c *SSH) AfterApply(k *kong.Context) error {
	if len(c.Args) < 2 || len(c.Args[0]) != 2 || c.Args[0][0] != '-' {
		return nil
	}
	whole, rest := c.Args[0]+c.Args[1], c.Args[2:]
	if at := len(k.Args) - len(rest) - 1; at >= 0 && k.Args[at] == whole && slices.Equal(k.Args[at+1:], rest) {
		c.Args = append([]string{whole}, rest...)
	}
	return nil
}

// Help is shown by --help.
func (*SSH) Help() string {
	return "Runs OpenSSH with this program as its ProxyCommand and the host keys that pairing pinned. " +
		"What follows the machine's name is for ssh(1): options first, then the remote command."
}

// Run replaces this process with OpenSSH.
func (c *SSH) Run(ctx context.Context, a *console.App) error {
	options, long, command := client.SplitSSHArgs(c.Args, func(name string) bool {
		return name != "insecure-http" && name != "json"
	})
	if err := c.takeLong(a, long); err != nil {
		return &console.Failure{Code: console.ExitUsage, Err: err, Hint: "see holdfast ssh --help; put -- before a remote command that begins with a dash"}
	}
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	user, name := "", c.Machine
	if at := strings.LastIndexByte(name, '@'); at >= 0 {
		user, name = name[:at], name[at+1:]
	}
	o, err := OpenSSH(ctx, a, dir, c.Connection)
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
		return &console.Failure{Code: console.ExitFailed, Err: errors.New("OpenSSH's ssh is not on the PATH"), Hint: "install the OpenSSH client"}
	}
	// In place of this process, so that terminal, signals, job control and exit
	// code are ssh's own.
	if err := syscall.Exec(ssh, args, a.Environ); err != nil {
		return fmt.Errorf("start %s: %w", ssh, err)
	}
	return nil
}

// takeLong reads those of our flags that stand behind the machine's name. ssh(1)
// has no long options, so there is nothing to confuse them with.
func (c *SSH) takeLong(a *console.App, long []string) error {
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
			a.State, a.StateGiven = value, true
		case "service":
			c.Service = value
		case "keepalive":
			d, err := time.ParseDuration(value)
			if err != nil {
				return fmt.Errorf("--keepalive: %w", err)
			}
			c.Keepalive = d
			if err := c.Connection.Validate(); err != nil {
				return err
			}
		}
	}
	return nil
}

// SSHConfig prints or installs OpenSSH configuration.
type SSHConfig struct {
	console.Connection
	Install bool `help:"Write the configuration into the state directory and include it in ~/.ssh/config."`
}

// Run prints or installs the configuration.
func (c *SSHConfig) Run(ctx context.Context, a *console.App) error {
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	o, err := OpenSSH(ctx, a, dir, c.Connection)
	if err != nil {
		return err
	}
	if !c.Install {
		text, err := o.ConfigText()
		if err != nil {
			return err
		}
		if a.JSON {
			return a.Emit(map[string]string{"config": text})
		}
		fmt.Fprint(a.Out, text)
		return nil
	}
	home, err := a.Home()
	if err != nil {
		return fmt.Errorf("find ~/.ssh: %w", err)
	}
	changed, err := o.Install(home)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.Emit(map[string]any{"installed": dir.Path(state.SSHConfigFile), "changed": changed})
	}
	if changed {
		a.Say("~/.ssh/config now includes %s", dir.Path(state.SSHConfigFile))
	} else {
		a.Say("~/.ssh/config includes %s already; it is up to date", dir.Path(state.SSHConfigFile))
	}
	return nil
}

// KnownHosts explains a host key to OpenSSH.
type KnownHosts struct {
	Service string `name:"service"`
	Machine string `arg:""`
	Reason  string `arg:""`
	Type    string `arg:""`
	Key     string `arg:""`
}

// Run is called by OpenSSH with the key that a host has shown. It prints no key:
// the pinned ones are in the known_hosts file. It says on standard error what
// OpenSSH will not: which key was expected.
func (c *KnownHosts) Run(a *console.App) error {
	if c.Reason != "HOSTNAME" {
		return nil
	}
	dir, err := a.Dir()
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
	console.Report(a.Err, &console.Failure{
		Code: console.ExitDenied,
		Err:  fmt.Errorf("host key of %q does not match: it showed %s, pinned is %s", m.Name, got, strings.Join(want, " or ")),
		Hint: "somebody may be in between; if you know that the machine was set up anew, pair with it again",
	})
	return nil
}
