package client

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"holdfast/internal/sshlink"
	"holdfast/internal/state"
	"holdfast/internal/wire"
)

// serverAliveSeconds is how often OpenSSH asks the far end itself whether it is
// alive; docs/liveness.md says why it is the data connections' own interval.
const serverAliveSeconds = 15

// OpenSSH says how OpenSSH reaches machines through this program.
type OpenSSH struct {
	Store *Store // required
	// Binary is the absolute path of this program: required.
	Binary string
	// KnownHostsCommand lets this program name both fingerprints when a host key
	// is wrong. OpenSSH knows it from 8.5 on and stops at it before.
	KnownHostsCommand bool
	// InsecureHTTP and Keepalive are handed on to `holdfast proxy`.
	InsecureHTTP bool
	Keepalive    time.Duration
}

// ErrNoHostKey says that nothing is pinned for a service, so that OpenSSH could
// only trust blindly.
var ErrNoHostKey = errors.New("no host key is pinned")

// ErrUnquotable says that a path holds something that OpenSSH's configuration
// cannot express.
var ErrUnquotable = errors.New("OpenSSH's configuration cannot express this path")

// option is one line of OpenSSH's configuration, value quoted.
type option struct{ key, value string }

// options are what OpenSSH needs for one service of a machine, all but User.
func (o OpenSSH) options(m Machine, service wire.ServiceName) ([]option, error) {
	keys, err := o.Store.PinnedKeys(m, service)
	if err != nil {
		return nil, err
	}
	algorithms := sshlink.HostKeyAlgorithms(keys)
	if len(algorithms) == 0 {
		what := "the machine's own sshd"
		if service != "" {
			what = "service " + string(service)
		}
		return nil, fmt.Errorf("%s of %q: %w", what, m.Name, ErrNoHostKey)
	}
	dir := o.Store.dir
	var quoted [2]string
	for i, p := range []string{dir.Path(state.KnownHostsFile), dir.Path(state.DeviceKeyFile)} {
		if quoted[i], err = quotePath(p); err != nil {
			return nil, err
		}
	}
	proxy, err := o.proxyCommand(m, service)
	if err != nil {
		return nil, err
	}
	out := []option{
		{"ProxyCommand", proxy},
		{"HostKeyAlias", hostAlias(m.Name, service)},
		{"HostKeyAlgorithms", strings.Join(algorithms, ",")},
		{"UserKnownHostsFile", quoted[0]},
		{"GlobalKnownHostsFile", "/dev/null"},
		{"StrictHostKeyChecking", "yes"},
		// Keys that the machine proves to own inside an authenticated connection
		// are taken over; unhashed, so that pairing again can replace them.
		{"UpdateHostKeys", "yes"},
		{"HashKnownHosts", "no"},
		{"IdentityFile", quoted[1]},
		{"IdentitiesOnly", "yes"},
		{"PasswordAuthentication", "no"},
		{"KbdInteractiveAuthentication", "no"},
		{"ServerAliveInterval", fmt.Sprint(serverAliveSeconds)},
	}
	if o.KnownHostsCommand {
		command, err := o.knownHostsCommand(m, service)
		if err != nil {
			return nil, err
		}
		out = append(out, option{"KnownHostsCommand", command})
	}
	return out, nil
}

// proxyCommand is run by the person's shell, after OpenSSH has expanded its
// percent signs.
func (o OpenSSH) proxyCommand(m Machine, service wire.ServiceName) (string, error) {
	words := []string{o.Binary, "proxy", "--state", o.Store.dir.Path("")}
	if o.InsecureHTTP {
		words = append(words, "--insecure-http")
	}
	if o.Keepalive != 0 {
		words = append(words, "--keepalive", o.Keepalive.String())
	}
	if service != "" {
		words = append(words, "--service", string(service))
	}
	words = append(words, m.Name)
	for i, w := range words {
		if strings.ContainsAny(w, "\n\r\x00") {
			return "", fmt.Errorf("%q: %w", w, ErrUnquotable)
		}
		words[i] = strings.ReplaceAll(ShellQuote(w), "%", "%%")
	}
	return strings.Join(words, " "), nil
}

// knownHostsCommand is split by OpenSSH itself, and needs an absolute path.
func (o OpenSSH) knownHostsCommand(m Machine, service wire.ServiceName) (string, error) {
	words := []string{o.Binary, "known-hosts", "--state", o.Store.dir.Path("")}
	if service != "" {
		words = append(words, "--service", string(service))
	}
	words = append(words, m.Name)
	for i, w := range words {
		var err error
		if words[i], err = quotePath(w); err != nil {
			return "", err
		}
	}
	return strings.Join(words, " ") + " %I %t %K", nil
}

// Args is the argument list of OpenSSH, its own name first, for a login to a
// service of m. What the person gave, split by SplitSSHArgs, stands so that it
// cannot undo the pinning and can choose another user.
func (o OpenSSH) Args(m Machine, service wire.ServiceName, personOptions, command []string) ([]string, error) {
	options, err := o.options(m, service)
	if err != nil {
		return nil, err
	}
	if err := o.Store.EnsurePinned(m); err != nil {
		return nil, err
	}
	args := []string{"ssh"}
	for _, opt := range options {
		args = append(args, "-o", opt.key+" "+opt.value)
	}
	args = append(args, personOptions...)
	user, err := quotePath(m.User)
	if err != nil {
		return nil, err
	}
	// The alias as the host's name keeps Host blocks and shared master
	// connections apart that the person has for the machine's other addresses.
	args = append(args, "-o", "User "+strings.ReplaceAll(user, "%%", "%"), "--", hostAlias(m.Name, service))
	return append(args, command...), nil
}

// sshOptionsWithValue are the options of ssh(1) that take a value.
const sshOptionsWithValue = "BbcDEeFIiJLlmOoPpQRSWw"

// SplitSSHArgs splits what follows the machine's name on the command line into
// options of ssh(1) and the remote command. Long options, which ssh(1) has none
// of, are ours: long lists them with their values, if written with a space then
// as two entries, as takesValue says.
func SplitSSHArgs(args []string, takesValue func(long string) bool) (options, long, command []string) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return options, long, args[i+1:]
		case strings.HasPrefix(a, "--"):
			long = append(long, a)
			if !strings.Contains(a, "=") && takesValue(a[2:]) && i+1 < len(args) {
				i++
				long = append(long, args[i])
			}
		case len(a) > 1 && a[0] == '-':
			options = append(options, a)
			at := strings.IndexAny(a[1:], sshOptionsWithValue) + 1
			if at > 0 && at == len(a)-1 && i+1 < len(args) {
				i++
				options = append(options, args[i])
			}
		default:
			return options, long, args[i:]
		}
	}
	return options, long, nil
}

// ConfigText is the configuration of OpenSSH for all paired machines: `Host M`
// for the default service and `Host M.ssh` for the built-in server.
func (o OpenSSH) ConfigText() (string, error) {
	machines, err := o.Store.All()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Written by holdfast ssh-config. It is written anew with every machine that is\n" +
		"# paired, so changes belong into your own configuration, after the Include.\n")
	block := func(host string, m Machine, service wire.ServiceName) error {
		options, err := o.options(m, service)
		if err != nil {
			return err
		}
		user, err := quotePath(m.User)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "\nHost %s\n    User %s\n", host, strings.ReplaceAll(user, "%%", "%"))
		for _, opt := range options {
			fmt.Fprintf(&b, "    %s %s\n", opt.key, opt.value)
		}
		return nil
	}
	for _, m := range machines {
		if err := block(m.Name, m, m.Service); err != nil {
			return "", err
		}
		if err := block(m.Name+"."+string(wire.ServiceSSH), m, wire.ServiceSSH); err != nil {
			return "", err
		}
	}
	if err := o.Store.EnsurePinned(machines...); err != nil {
		return "", err
	}
	return b.String(), nil
}

// maxSSHConfigBytes bounds the person's own configuration, which is read whole.
const maxSSHConfigBytes = 1 << 20

// includeMark stands above our line in the person's configuration.
const includeMark = "# Added by holdfast ssh-config --install: the machines that this computer is paired with."

// ErrSymlink says that a file is a symbolic link, which is not followed.
var ErrSymlink = errors.New("it is a symbolic link")

// Install writes ConfigText into the state directory and makes the OpenSSH
// configuration in home include it. It reports whether that needed a change.
func (o OpenSSH) Install(home string) (changed bool, err error) {
	line, err := o.includeLine()
	if err != nil {
		return false, err
	}
	if err := o.writeConfig(); err != nil {
		return false, err
	}
	dir := filepath.Join(home, ".ssh")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return false, fmt.Errorf("make %s: %w", dir, err)
	}
	path := filepath.Join(dir, "config")
	mode := os.FileMode(0o600)
	switch st, err := os.Lstat(path); {
	case err == nil && st.Mode()&os.ModeSymlink != 0:
		return false, fmt.Errorf("change %s: %w; add this line at its top yourself: %s", path, ErrSymlink, line)
	case err == nil && !st.Mode().IsRegular():
		return false, fmt.Errorf("change %s: it is not a file", path)
	case err == nil:
		mode = st.Mode().Perm()
	case !errors.Is(err, os.ErrNotExist):
		return false, fmt.Errorf("change %s: %w", path, err)
	}
	old, err := state.ReadFile(path, maxSSHConfigBytes)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	lines := strings.SplitAfter(string(old), "\n")
	if slices.ContainsFunc(lines, func(l string) bool { return strings.TrimSpace(l) == line }) {
		return false, nil
	}
	// At the top: an Include below a Host line belongs to that Host alone.
	text := includeMark + "\n" + line + "\n"
	if len(old) > 0 {
		text += "\n" + string(old)
	}
	return true, state.WriteFile(path, []byte(text), mode)
}

// Refresh writes ConfigText again where Install has done so before.
func (o OpenSSH) Refresh() error {
	if !o.Store.dir.Has(state.SSHConfigFile) {
		return nil
	}
	return o.writeConfig()
}

func (o OpenSSH) writeConfig() error {
	text, err := o.ConfigText()
	if err != nil {
		return err
	}
	return state.WriteFile(o.Store.dir.Path(state.SSHConfigFile), []byte(text), 0o600)
}

func (o OpenSSH) includeLine() (string, error) {
	path := o.Store.dir.Path(state.SSHConfigFile)
	// Include takes patterns and, in newer versions, expansions.
	if strings.ContainsAny(path, "*?[]%$\"\\\n\r\x00") {
		return "", fmt.Errorf("%q: %w", path, ErrUnquotable)
	}
	return `Include "` + path + `"`, nil
}

// quotePath quotes one argument of a configuration line that OpenSSH expands
// (% and ${}) and splits itself.
func quotePath(p string) (string, error) {
	if strings.Contains(p, "${") || strings.ContainsAny(p, "\n\r\x00") {
		return "", fmt.Errorf("%q: %w", p, ErrUnquotable)
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%").Replace(p) + `"`, nil
}

// ShellQuote quotes one word for a POSIX shell.
func ShellQuote(s string) string {
	plain := s != ""
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:@+=,", r)) {
			plain = false
		}
	}
	if plain {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
