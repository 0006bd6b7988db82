// Package hooks has the commands that put hooks of Holdfast into the settings of
// coding tools, take them out, and are run by them.
//
// What a caller will get wrong: `hooks run` is called by a tool at each of its
// steps, which waits for it and takes what it prints for an answer; it prints
// nothing and always succeeds.
package hooks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"holdfast/internal/console"
	"holdfast/internal/session/hooks"
	"holdfast/internal/session/proc"
)

// Hooks are the commands about hooks.
type Hooks struct {
	Install Install `cmd:"" help:"Let coding tools tell what they do, beside the hooks they have."`
	Remove  Remove  `cmd:"" help:"Take the hooks out again, and nothing else."`
	Run     Run     `cmd:"" hidden:"" help:"Keep what a tool tells (called by the tool)."`
}

// Install puts hooks into the settings of tools.
type Install struct {
	Tools []string `arg:"" optional:"" name:"tool" enum:"claude,codex,gemini" help:"claude, codex or gemini; all that are there."`
}

// Run installs.
func (c *Install) Run(a *console.App) error {
	program, err := console.Self()
	if err != nil {
		return err
	}
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	n, err := each(a, c.Tools, "installed", "is there already", func(o hooks.Options) (hooks.Result, error) {
		o.Program, o.State = program, dir.Path("")
		return hooks.Install(o)
	})
	if err != nil || a.JSON {
		return err
	}
	if n["codex"] {
		a.Note("Codex runs a new hook only after you have trusted it: type /hooks in Codex once")
	}
	if len(n) > 0 {
		a.Note("what runs already takes them at its next start")
	}
	return nil
}

// Remove takes hooks out.
type Remove struct {
	Tools []string `arg:"" optional:"" name:"tool" enum:"claude,codex,gemini" help:"claude, codex or gemini; all that are there."`
}

// Run removes.
func (c *Remove) Run(a *console.App) error {
	_, err := each(a, c.Tools, "removed", "was not there", hooks.Remove)
	return err
}

// each changes the settings of the tools that are named, or of all that are
// there, and says what was done. One that fails does not keep the others.
func each(a *console.App, named []string, did, didNot string, change func(hooks.Options) (hooks.Result, error)) (changed map[string]bool, err error) {
	home, err := a.Home()
	if err != nil {
		return nil, fmt.Errorf("find the home directory: %w", err)
	}
	tools := named
	if len(tools) == 0 {
		tools = hooks.Tools()
	}
	changed = map[string]bool{}
	var failed []error
	there := 0
	for _, tool := range tools {
		o := hooks.Options{Tool: tool, Dir: hooks.ToolDir(tool, home, a.Getenv)}
		if o.Dir, err = filepath.Abs(o.Dir); err != nil {
			return nil, fmt.Errorf("find the directory of %s: %w", tool, err)
		}
		r, err := change(o)
		switch {
		case errors.Is(err, hooks.ErrNotThere) && len(named) == 0:
			continue
		case err != nil:
			failed = append(failed, err)
			continue
		}
		there++
		if r.Changed {
			changed[tool] = true
		}
		switch {
		case a.JSON:
			if err := a.Emit(r); err != nil {
				return nil, err
			}
		case r.Changed:
			a.Say("%s: %s in %s", tool, did, r.File)
		default:
			a.Say("%s: %s in %s", tool, didNot, r.File)
		}
	}
	switch {
	case len(failed) > 0:
		return nil, &console.Failure{Code: console.ExitFailed, Err: errors.Join(failed...), Hint: "a file that could not be changed was left as it was"}
	case there == 0:
		return nil, &console.Failure{Code: console.ExitFailed, Err: errors.New("no coding tool has settings here"), Hint: "start the tool once, or name where it keeps them: CLAUDE_CONFIG_DIR, CODEX_HOME"}
	}
	return changed, nil
}

// Run is called by a tool.
type Run struct {
	Tool string `arg:"" help:"Which tool."`
}

// ancestors are as many processes as can stand between a tool and its hook: a
// shell or two, and what started them.
const ancestors = 8

// Run keeps what standard input says. Nothing that goes wrong is worth stopping
// the tool for.
func (c *Run) Run(a *console.App) error {
	if info, err := os.Stat(a.State); err != nil || !info.IsDir() {
		return nil
	}
	var pids []int
	for pid := os.Getppid(); pid > 1 && len(pids) < ancestors; {
		pids = append(pids, pid)
		p, err := proc.Read(pid)
		if err != nil {
			break
		}
		pid = p.Parent
	}
	_ = hooks.Run(a.State, c.Tool, a.In, a.Getenv, pids)
	return nil
}
