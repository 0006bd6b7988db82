package proc

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// inputThreads are what tools call their threads that read the terminal. They read
// nothing else while they wait for an answer.
var inputThreads = map[string]string{"codex": "codex-main"}

// maxThreads bounds the threads of one process that are looked at: Codex has some
// dozens, a runtime's workers and its stores'.
const maxThreads = 512

// Typed says how much the program has taken of what was typed at its terminal: it
// is another text after each answer, and the same while one is waited for. A key
// that a tool reads and makes nothing of changes it too, as does what a terminal
// answers when its size changes. Two processes that ask find the same. It is as
// exact as the system tells: of another user's program it is the time of the last
// read, which the kernel keeps to eight seconds. It is empty for a known tool that is
// not in inputThreads.
func (f Facts) Typed(tty string) string {
	name := inputThreads[f.Tool]
	if f.Known && name == "" {
		return ""
	}
	var out strings.Builder
	var s unix.Stat_t
	if strings.HasPrefix(tty, "/dev/") && unix.Stat(tty, &s) == nil {
		fmt.Fprintf(&out, "at %d", s.Atim.Sec)
	}
	if f.Known {
		count(&out, f.PID, func(task string) bool {
			b, err := readFile(task + "/comm")
			return err == nil && string(bytes.TrimSpace(b)) == name
		})
		return out.String()
	}
	// Whoever sleeps in a read of the terminal has taken all that it was given.
	group := []int{f.PID}
	for pid, p := range snapshot() {
		if p.Group == f.Group && pid != f.PID {
			group = append(group, pid)
		}
	}
	slices.Sort(group)
	for _, pid := range group {
		count(&out, pid, func(task string) bool {
			b, err := readFile(task + "/wchan")
			return err == nil && readsTerminal(string(b))
		})
	}
	return out.String()
}

// count adds how many bytes the threads of a process have read that are of a kind.
// What its children read is not in it: they may end at any time.
func count(out *strings.Builder, pid int, of func(task string) bool) {
	tasks, err := os.ReadDir(dir(pid) + "/task")
	if err != nil {
		return // it ended
	}
	for _, t := range tasks[:min(len(tasks), maxThreads)] {
		task := dir(pid) + "/task/" + t.Name()
		if !of(task) {
			continue
		}
		if b, err := readFile(task + "/io"); err == nil {
			line, _, _ := bytes.Cut(b, []byte("\n"))
			fmt.Fprintf(out, " %s %s", t.Name(), line)
		}
	}
}
