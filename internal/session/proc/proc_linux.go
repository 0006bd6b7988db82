package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxRead bounds what is read of one file of /proc.
const maxRead = 256 << 10

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, ErrGone
		}
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRead))
	if errors.Is(err, unix.ESRCH) {
		return nil, ErrGone
	}
	return b, err
}

func dir(pid int) string { return "/proc/" + strconv.Itoa(pid) }

// ticks is the unit of start times in /proc: USER_HZ, 100 on every
// architecture that Linux runs on today.
const ticks = 100

var boot = sync.OnceValue(func() time.Time {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}
	}
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		if rest, ok := bytes.CutPrefix(line, []byte("btime ")); ok {
			if n, err := strconv.ParseInt(string(rest), 10, 64); err == nil {
				return time.Unix(n, 0)
			}
		}
	}
	return time.Time{}
})

// stat reads /proc/PID/stat, which is cheap: no argument, no link.
func stat(pid int) (Process, error) {
	b, err := readFile(dir(pid) + "/stat")
	if err != nil {
		return Process{}, err
	}
	return parseStat(pid, b)
}

func parseStat(pid int, b []byte) (Process, error) {
	// The name is in parentheses and may hold any character.
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return Process{}, fmt.Errorf("read process %d: its state is not understood", pid)
	}
	f := strings.Fields(string(b[end+1:]))
	if len(f) < 20 {
		return Process{}, fmt.Errorf("read process %d: its state is not understood", pid)
	}
	number := func(i int) int { n, _ := strconv.Atoi(f[i]); return n }
	p := Process{
		PID: pid, Name: string(b[open+1 : end]), Zombie: f[0] == "Z" || f[0] == "X",
		Parent: number(1), Group: number(2), Terminal: uint64(uint32(number(4))), Foreground: number(5), Start: f[19],
	}
	if n, err := strconv.ParseInt(f[19], 10, 64); err == nil && !boot().IsZero() {
		p.Started = boot().Add(time.Duration(n) * time.Second / ticks)
	}
	return p, nil
}

// Read reads one process.
func Read(pid int) (Process, error) {
	p, err := stat(pid)
	if err != nil {
		return p, err
	}
	return details(p), nil
}

// details adds what costs more to read.
func details(p Process) Process {
	if b, err := readFile(dir(p.PID) + "/cmdline"); err == nil && len(b) > 0 {
		p.Args = strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
	}
	p.Exe, _ = os.Readlink(dir(p.PID) + "/exe")
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
// keys to. It costs one read and is asked often.
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
	if first.Foreground <= 0 {
		return Facts{}, fmt.Errorf("look at the terminal of process %d: no group has the foreground", panePID)
	}
	all := snapshot()
	for range 4 { // a terminal behind a terminal, at most a few deep
		group, ancestors := around(all, first.PID, first.Foreground)
		if len(group) == 0 {
			return Facts{}, ErrGone
		}
		f := identify(group, ancestors)
		behind, ok := behind(all, f)
		if !ok {
			f.Dir = Dir(f.PID)
			if first.PID != panePID {
				f.Behind, f.BehindGroup = first.PID, first.Foreground
			}
			return f, nil
		}
		first = behind
	}
	return Facts{}, fmt.Errorf("look at the terminal of process %d: too many terminals behind one another", panePID)
}

// snapshot reads the state of every process.
func snapshot() map[int]Process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	all := make(map[int]Process, len(entries))
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, err := stat(pid); err == nil && !p.Zombie {
			all[pid] = p
		}
	}
	return all
}

// around finds the members of the foreground group, its leader first, and the
// leader's ancestors up to and with the pane's first process.
func around(all map[int]Process, first, foreground int) (group, ancestors []Process) {
	terminal := all[first].Terminal
	for _, p := range all {
		if p.Group == foreground && p.Terminal == terminal {
			group = append(group, p)
		}
	}
	slices.SortFunc(group, func(a, b Process) int {
		if lead := (b.PID == foreground); lead != (a.PID == foreground) {
			if lead {
				return 1
			}
			return -1
		}
		return a.PID - b.PID
	})
	if len(group) > 64 {
		group = group[:64]
	}
	for i := range group {
		group[i] = details(group[i])
	}
	if len(group) == 0 {
		return nil, nil
	}
	for pid, n := group[0].PID, 0; pid != first && n < 64; n++ {
		p, ok := all[all[pid].Parent]
		if !ok {
			break
		}
		ancestors = append(ancestors, details(p))
		pid = p.PID
	}
	return group, ancestors
}

// behind finds the first process of the terminal that a program such as script
// or sudo keeps for what it runs.
func behind(all map[int]Process, f Facts) (Process, bool) {
	if f.Known || !slices.Contains(second, f.Tool) {
		return Process{}, false
	}
	below := []int{f.PID}
	for len(below) > 0 {
		parent := below[0]
		below = below[1:]
		for _, p := range all {
			if p.Parent != parent {
				continue
			}
			if p.Terminal != 0 && p.Terminal != f.Terminal && p.Foreground > 0 {
				return p, true
			}
			if len(below) < 256 {
				below = append(below, p.PID)
			}
		}
	}
	return Process{}, false
}

// Dir is a process's working directory, empty where it may not be read.
func Dir(pid int) string {
	d, err := os.Readlink(dir(pid) + "/cwd")
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(d, " (deleted)")
}

// Env reads some variables of a process's environment as it was when it
// started. Only the names asked for leave this function.
func Env(pid int, names ...string) map[string]string {
	b, err := readFile(dir(pid) + "/environ")
	if err != nil {
		return nil
	}
	out := map[string]string{}
	for v := range bytes.SplitSeq(b, []byte{0}) {
		name, value, ok := strings.Cut(string(v), "=")
		if ok && slices.Contains(names, name) {
			out[name] = value
		}
	}
	return out
}

// OpenFiles lists the regular files that a process holds open, at most 256.
func OpenFiles(pid int) []string {
	entries, err := os.ReadDir(dir(pid) + "/fd")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		path, err := os.Readlink(dir(pid) + "/fd/" + e.Name())
		if err != nil || !filepath.IsAbs(path) || strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/") {
			continue
		}
		if out = append(out, path); len(out) == 256 {
			break
		}
	}
	return out
}

// Reads says that a process sleeps in a read of its terminal, as far as the
// kernel tells: a hint, some kernels name the same function for other waits.
func Reads(pid int) bool {
	b, err := readFile(dir(pid) + "/wchan")
	return err == nil && readsTerminal(string(b))
}

// readsTerminal says that a kernel function is where a read of a terminal sleeps.
func readsTerminal(wchan string) bool {
	return wchan == "n_tty_read" || wchan == "tty_read" || wchan == "wait_woken"
}

// maxTasks bounds the threads of one process that are looked at.
const maxTasks = 64

// mayRead says that a thread of a group sleeps in a read of the terminal, or that
// the kernel does not tell.
func mayRead(group int) bool {
	for _, p := range snapshot() {
		if p.Group != group {
			continue
		}
		if _, err := os.Readlink(dir(p.PID) + "/exe"); errors.Is(err, os.ErrPermission) {
			return true // another user's, as sudo is
		}
		tasks, err := os.ReadDir(dir(p.PID) + "/task")
		if err != nil {
			continue // it ended
		}
		for _, t := range tasks[:min(len(tasks), maxTasks)] {
			if taskMayRead(dir(p.PID) + "/task/" + t.Name()) {
				return true
			}
		}
	}
	return false
}

func taskMayRead(task string) bool {
	b, err := readFile(task + "/wchan")
	if err != nil {
		return false
	}
	wchan := string(b)
	if wchan == "0" || wchan == "" {
		// It runs, or the kernel keeps the name to itself.
		b, err := readFile(task + "/stat")
		state := strings.TrimSpace(string(b[bytes.LastIndexByte(b, ')')+1:]))
		return err == nil && (strings.HasPrefix(state, "S") || strings.HasPrefix(state, "D"))
	}
	// Some wait with poll or select before they read.
	waits := strings.Contains(wchan, "poll") && !strings.HasPrefix(wchan, "ep_") || strings.Contains(wchan, "select")
	return readsTerminal(wchan) || waits
}

// TTY is the terminal that the program has: one behind the pane's, or the pane's.
func (f Facts) TTY(pane string) string {
	// The kernel's number of a device: major 136 and up are pseudo terminals.
	major, minor := f.Terminal>>8&0xfff, f.Terminal&0xff|f.Terminal>>12&0xfff00
	if f.Behind == 0 || major < 136 || major > 143 {
		return pane
	}
	return fmt.Sprintf("/dev/pts/%d", (major-136)<<8|minor)
}
