package proc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func from(k *unix.KinfoProc) Process {
	start := time.Unix(k.Proc.P_starttime.Sec, int64(k.Proc.P_starttime.Usec)*1000)
	return Process{
		PID: int(k.Proc.P_pid), Parent: int(k.Eproc.Ppid), Group: int(k.Eproc.Pgid),
		Terminal: uint64(uint32(k.Eproc.Tdev)), Foreground: int(k.Eproc.Tpgid),
		Start: fmt.Sprintf("%d.%06d", k.Proc.P_starttime.Sec, k.Proc.P_starttime.Usec), Started: start,
		Name: unix.ByteSliceToString(k.Proc.P_comm[:]), Zombie: k.Proc.P_stat == 5, // SZOMB
	}
}

func stat(pid int) (Process, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return Process{}, ErrGone
	}
	return from(k), nil
}

// Read reads one process.
func Read(pid int) (Process, error) {
	p, err := stat(pid)
	if err != nil {
		return p, err
	}
	return details(p), nil
}

// arguments reads kern.procargs2: a count, the file, zeros, the arguments, the
// environment.
func arguments(pid int) (exe string, args, env []string) {
	b, err := unix.SysctlRaw("kern.procargs2", pid)
	if err != nil || len(b) < 4 {
		return "", nil, nil
	}
	count := int(binary.LittleEndian.Uint32(b))
	file, rest, _ := bytes.Cut(b[4:], []byte{0})
	words := strings.Split(string(bytes.TrimLeft(rest, "\x00")), "\x00")
	if count < 0 || count > len(words) {
		return string(file), nil, nil
	}
	return string(file), words[:count], words[count:]
}

func details(p Process) Process {
	p.Exe, p.Args, _ = arguments(p.PID)
	return p
}

// Alive says whether the very process is still there.
func Alive(pid int, start string) bool {
	p, err := stat(pid)
	return err == nil && p.Start == start && !p.Zombie
}

// Running says whether any process has that id and has not ended: one that only its
// parent has yet to ask for has.
func Running(pid int) bool {
	p, err := stat(pid)
	return err == nil && !p.Zombie
}

// ForegroundGroup is the group that the terminal of a pane's process gives its
// keys to.
func ForegroundGroup(panePID int) (int, error) {
	p, err := stat(panePID)
	if err != nil {
		return 0, err
	}
	return p.Foreground, nil
}

// Foreground says what runs in the foreground of the terminal of a pane's first
// process.
func Foreground(panePID int) (Facts, error) {
	first, err := stat(panePID)
	if err != nil {
		return Facts{}, err
	}
	list, err := unix.SysctlKinfoProcSlice("kern.proc.tty", int(first.Terminal))
	if err != nil {
		return Facts{}, fmt.Errorf("look at the terminal of process %d: %w", panePID, err)
	}
	all := map[int]Process{}
	var group []Process
	for i := range list {
		p := from(&list[i])
		if p.Zombie {
			continue
		}
		all[p.PID] = p
		if p.Group == first.Foreground {
			group = append(group, details(p))
		}
	}
	if len(group) == 0 {
		return Facts{}, ErrGone
	}
	slices.SortFunc(group, func(a, b Process) int {
		if lead := (b.PID == first.Foreground); lead != (a.PID == first.Foreground) {
			if lead {
				return 1
			}
			return -1
		}
		return a.PID - b.PID
	})
	var ancestors []Process
	for pid, n := group[0].PID, 0; pid != first.PID && n < 64; n++ {
		p, ok := all[all[pid].Parent]
		if !ok {
			break
		}
		ancestors = append(ancestors, details(p))
		pid = p.PID
	}
	return identify(group, ancestors), nil
}

// Dir is not known here without asking another program; tmux tells it.
func Dir(int) string { return "" }

// Env reads some variables of a process's environment as it was when it
// started. Only the names asked for leave this function.
func Env(pid int, names ...string) map[string]string {
	_, _, env := arguments(pid)
	out := map[string]string{}
	for _, v := range env {
		name, value, ok := strings.Cut(v, "=")
		if ok && slices.Contains(names, name) {
			out[name] = value
		}
	}
	return out
}

// OpenFiles is not known here.
func OpenFiles(int) []string { return nil }

// Reads is not known here.
func Reads(int) bool { return false }

// mayRead is not known here: whatever has the terminal may.
func mayRead(int) bool { return true }

// TTY is the pane's terminal: none behind it is found here.
func (f Facts) TTY(pane string) string { return pane }

// Typed is not known here.
func (f Facts) Typed(string) string { return "" }
