//go:build unix

// Package shell runs commands as the agent's own user the way a login would:
// with a login environment, in the home directory, under a pseudo-terminal or
// over pipes, in a session and process group of their own.
//
// It never changes the user, never passes on the agent's environment (which
// may hold secrets) beyond a short list of names, and never leaves a command
// behind whose stream ended first.
//
// What a caller will get wrong: a Process must be released with Close even when
// Wait returned; and whatever is to outlive the connection needs a session of
// its own (tmux, setsid), since the command's process group is killed.
package shell

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	// fallbackShell exists wherever there is a shell.
	fallbackShell = "/bin/sh"
	// fallbackPath is for an agent that was started without a PATH.
	fallbackPath = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
	// lookupTimeout bounds a directory service that does not answer.
	lookupTimeout = 2 * time.Second
	// maxLookupBytes bounds what a directory service says of one user.
	maxLookupBytes = 64 << 10
)

// passwd is where the system's own users are; a variable for tests.
var passwd = "/etc/passwd"

// Account is the user as whom everything runs: the one of this process.
type Account struct {
	Name  string
	Home  string
	Shell string
	// inherited are the variables taken over from the agent's environment.
	inherited []string
}

// inheritedNames may pass from the agent to a command: where the user's own
// services are reached, and in which language. Nothing else does.
var inheritedNames = map[string]bool{
	"PATH": true, "TZ": true, "LANG": true,
	"XDG_RUNTIME_DIR": true, "DBUS_SESSION_BUS_ADDRESS": true,
	"TMPDIR": true, "TMUX_TMPDIR": true,
}

// Current finds out about the user of this process. home replaces the one of
// the user database where it is not empty. environ is the agent's environment,
// of which a few names are passed on and SHELL is the second choice where the
// user database names no shell.
func Current(home string, environ []string) (Account, error) {
	u, err := user.Current()
	if err != nil {
		return Account{}, fmt.Errorf("find out who runs this: %w", err)
	}
	a := Account{Name: u.Username, Home: u.HomeDir}
	if home != "" {
		a.Home = home
	}
	if !filepath.IsAbs(a.Home) {
		return Account{}, fmt.Errorf("home directory %q of %s is not an absolute path", a.Home, a.Name)
	}
	second := ""
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case name == "SHELL":
			second = value
		case value != "" && (inheritedNames[name] || strings.HasPrefix(name, "LC_")):
			a.inherited = append(a.inherited, v)
		}
	}
	a.Shell = fallbackShell
	for _, candidate := range []string{loginShell(u), second} {
		if runnable(candidate) {
			a.Shell = candidate
			break
		}
	}
	return a, nil
}

// loginShell asks the user database, or gives the empty string.
func loginShell(u *user.User) string {
	if f, err := os.Open(passwd); err == nil {
		defer f.Close()
		if shell := passwdShell(f, u.Uid); shell != "" {
			return shell
		}
	}
	// Users of a directory service are not in the file.
	if runtime.GOOS == "darwin" {
		out := ask("dscl", ".", "-read", "/Users/"+u.Username, "UserShell")
		_, shell, _ := strings.Cut(string(out), "UserShell:")
		return strings.TrimSpace(shell)
	}
	return passwdShell(bytes.NewReader(ask("getent", "passwd", u.Uid)), u.Uid)
}

// passwdShell finds the shell of uid in passwd(5) form.
func passwdShell(r io.Reader, uid string) string {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if f := strings.Split(lines.Text(), ":"); len(f) == 7 && f[2] == uid && f[0] != "" && f[0][0] != '#' {
			return f[6]
		}
	}
	return ""
}

// ask runs a tool of the system that answers with a few lines, or nothing.
func ask(name string, args ...string) []byte {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil || len(out) > maxLookupBytes {
		return nil
	}
	return out
}

func runnable(path string) bool {
	info, err := os.Stat(path)
	return filepath.IsAbs(path) && err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// environ makes a command's environment: a login's, then what the agent passes
// on, then what the device asked for.
func (a Account) environ(requested []string, term string) []string {
	env := map[string]string{"PATH": fallbackPath}
	for _, v := range append(append([]string(nil), a.inherited...), requested...) {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	env["HOME"], env["USER"], env["LOGNAME"], env["SHELL"] = a.Home, a.Name, a.Name, a.Shell
	if term != "" {
		env["TERM"] = term
	}
	// A terminal that is not UTF-8 shows other characters than the person typed.
	// What was chosen stays, the empty choice is filled in.
	if env["LC_ALL"] == "" && env["LC_CTYPE"] == "" && env["LANG"] == "" {
		delete(env, "LC_ALL")
		if runtime.GOOS == "darwin" {
			env["LC_CTYPE"] = "UTF-8" // macOS has no C.UTF-8
		} else {
			env["LANG"] = "C.UTF-8"
		}
	}
	out := make([]string, 0, len(env))
	for name, value := range env {
		out = append(out, name+"="+value)
	}
	return out
}

// AcceptEnv reports whether a device may set a variable: the language, and
// nothing that could change which code runs.
func AcceptEnv(name, value string) bool {
	if name != "LANG" && !strings.HasPrefix(name, "LC_") {
		return false
	}
	return len(name) <= 64 && len(value) <= 256 && !strings.ContainsAny(name+value, "\x00\n=")
}
