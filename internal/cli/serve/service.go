package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kardianos/service"

	"holdfast/internal/console"
	"holdfast/internal/state"
)

// The service managers that `agent install` knows.
const (
	systemdName = "linux-systemd"
	launchdName = "darwin-launchd"
)

// serviceName is what the managers call the agent.
const serviceName = "holdfast"

// systemdUnit is the unit of the user's agent. Exit code 4 means that another
// agent took the name: starting again would only fight it. KillMode lets a tmux
// server live on that was started for a new session: with the agent everybody's
// sessions there would end.
const systemdUnit = `[Unit]
Description={{Description}}
After=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart={{Path | cmdEscape}}{{range Arguments}} {{. | cmd}}{{end}}
Restart=always
RestartSec=5
RestartPreventExitStatus=4
KillMode=process

[Install]
WantedBy=default.target
`

type agentInstall struct{}

// Help is shown by --help.
func (*agentInstall) Help() string {
	return "Writes the unit, enables and starts it. A token from the environment is kept in the state directory. " +
		"On a server, loginctl enable-linger lets it run without a login."
}

// Run installs and starts the service.
func (*agentInstall) Run(ctx context.Context, a *console.App, c *Agent) error {
	system := service.ChosenSystem()
	if system == nil || system.String() != systemdName && system.String() != launchdName {
		return &console.Failure{Code: console.ExitFailed, Err: errors.New("neither systemd nor launchd runs here"), Hint: "have your own supervisor run holdfast agent, and not start it again after exit code 4"}
	}
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	if err := c.keepToken(ctx, a, dir); err != nil {
		return err
	}
	relay, o, err := c.target(a, dir)
	if err != nil {
		return err
	}
	args := c.arguments(dir, relay.String(), string(o.Machine), system.String())
	binary, err := console.Self()
	if err != nil {
		return err
	}
	path, err := installService(system, binary, args)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.Emit(map[string]any{"installed": path, "machine": o.Machine, "relay": relay.String()})
	}
	a.Say("installed and started %s for machine %q on %s", path, o.Machine, relay)
	if system.String() == systemdName {
		a.Say("To let it run while you are logged out:  loginctl enable-linger")
	}
	return nil
}

// keepToken puts a token that only this process has into the state directory.
func (c *Agent) keepToken(ctx context.Context, a *console.App, dir state.Dir) error {
	if c.TokenFile != "" || a.Getenv(tokenEnv) == "" {
		return nil
	}
	source, err := c.tokenSource(a, dir, "")
	if err != nil {
		return err
	}
	t, err := source(ctx)
	if err != nil {
		return err
	}
	path := dir.Path(state.AgentTokenFile)
	if err := state.WriteFile(path, []byte(t.Secret()+"\n"), 0o600); err != nil {
		return err
	}
	c.TokenFile = path
	return nil
}

// arguments are those of the agent that the service starts. What was given by
// environment or file is written out, since the service has neither.
func (c *Agent) arguments(dir state.Dir, relay, machine, system string) []string {
	args := []string{"agent", "--state", dir.Path(""), "--relay", relay, "--machine", machine, "--sshd", c.SSHD, "--shell", c.Shell}
	token := c.TokenFile
	if token == "" {
		token = dir.Path(state.AgentTokenFile)
	}
	args = append(args, "--token-file", token)
	for _, s := range c.Service {
		args = append(args, "--service", s)
	}
	if c.InsecureHTTP {
		args = append(args, "--insecure-http")
	}
	if c.Keepalive != 0 {
		args = append(args, "--keepalive", c.Keepalive.String())
	}
	if system == launchdName {
		// launchd starts again whatever the exit code says.
		args = append(args, "--stay-when-replaced")
	}
	return args
}

// installService writes, enables and starts the service, in place of an earlier
// one, and says where its file is.
func installService(system service.System, binary string, args []string) (path string, err error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("install service: %w", err)
	}
	path = filepath.Join(home, "Library", "LaunchAgents", serviceName+".plist")
	if system.String() == systemdName {
		path = filepath.Join(home, ".config", "systemd", "user", serviceName+".service")
		binary = strings.ReplaceAll(binary, "%", "%%")
		args = slices.Clone(args)
		for i := range args {
			// Quotes are the library's to escape; these it leaves.
			args[i] = strings.NewReplacer(`\`, `\\`, "%", "%%", "$", "$$").Replace(args[i])
		}
	}
	s, err := system.New(nil, &service.Config{
		Name: serviceName, DisplayName: "Holdfast", Description: "Holdfast agent: SSH to this machine through a relay",
		Executable: binary, Arguments: args,
		Option: service.KeyValue{
			"UserService": true, "SystemdScript": systemdUnit, "RunAtLoad": true, "KeepAlive": true,
		},
	})
	if err != nil {
		return "", fmt.Errorf("install service: %w", err)
	}
	if _, statErr := os.Lstat(path); statErr == nil {
		// What stops it may have been started by hand or not at all.
		_ = s.Stop()
		if err := s.Uninstall(); err != nil {
			return "", fmt.Errorf("replace %s: %w", path, err)
		}
	}
	if err := s.Install(); err != nil {
		return "", fmt.Errorf("install %s: %w", path, err)
	}
	if err := s.Start(); err != nil {
		return "", &console.Failure{Code: console.ExitFailed, Err: fmt.Errorf("start %s: %w", path, err), Hint: "it is installed; see systemctl --user status holdfast, or launchctl print gui/$UID/holdfast"}
	}
	return path, nil
}
