//go:build linux

// Command bench measures what a relay costs: memory and processor time of idle
// machines, the pump beside plain proxies and a relay that copies messages, the
// delay of a keystroke, the memory of a stream, and the rate of upgrades.
//
// It runs as several processes: this one makes the load, and starts itself as the
// server of each variant, so that the server's memory and processor time are its
// own, and as a second load where one is to disturb the other. docs/performance.md says how to read the figures.
//
// What a reader will get wrong: absolute speed is that of one machine at one
// time; only figures of one run, taken side by side, can be compared.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// settings are the sizes of a run.
type settings struct {
	machines int           // parked at once
	pairs    int           // idle streams at once
	reps     int           // repetitions of each pump measurement
	bytes    int64         // moved in each
	echoes   int           // round trips timed
	rest     time.Duration // between variants
	only     string
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		fail(serve(os.Args[2:]))
		return
	}
	if len(os.Args) > 3 && os.Args[1] == "bulk" {
		fail(bulk(&server{variant: os.Args[2], addr: os.Args[3], machine: 1}))
		return
	}
	var s settings
	flag.IntVar(&s.machines, "machines", 10_000, "machines parked at once; two processes need a descriptor each")
	flag.IntVar(&s.pairs, "pairs", 2_000, "streams open at once")
	flag.IntVar(&s.reps, "reps", 9, "repetitions of each pump measurement; the machine is rarely quiet, so many short ones")
	flag.Int64Var(&s.bytes, "bytes", 96<<20, "payload moved in each pump measurement")
	flag.IntVar(&s.echoes, "echoes", 10_000, "round trips timed")
	flag.StringVar(&s.only, "only", "", "one part: idle, pump, latency or streams")
	quick := flag.Bool("quick", false, "a tenth of everything, to see that it runs")
	write := flag.String("write", "", "file in which to replace the text between the measured marks")
	flag.Parse()
	if *quick {
		s.machines, s.pairs, s.reps, s.bytes, s.echoes = s.machines/10, s.pairs/10, 1, s.bytes/16, s.echoes/10
	}
	var report bytes.Buffer
	fail(run(io.MultiWriter(os.Stdout, &report), s))
	if *write != "" {
		fail(replace(*write, report.String()))
	}
}

func run(w io.Writer, s settings) error {
	fmt.Fprintf(w, "Measured %s on %s; %d machines, %d pairs, %d repetitions of %d MiB.\n",
		time.Now().UTC().Format("2006-01-02 15:04 UTC"), machine(), s.machines, s.pairs, s.reps, s.bytes>>20)
	for _, part := range []struct {
		name string
		run  func(io.Writer, settings) error
	}{{"idle", idle}, {"pump", pumps}, {"latency", latency}, {"streams", streams}} {
		if s.only != "" && s.only != part.name {
			continue
		}
		if err := part.run(w, s); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// machine describes where the run took place.
func machine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, rest, ok := strings.Cut(string(b), "model name\t: "); ok {
			model, _, _ = strings.Cut(rest, "\n")
		}
	}
	load := ""
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		load = strings.Join(strings.Fields(string(b))[:1], " ")
	}
	kernel, _ := exec.Command("uname", "-r").Output()
	return fmt.Sprintf("%d × %s, Linux %s, %s, load average %s at the start",
		runtime.NumCPU(), strings.TrimSpace(model), strings.TrimSpace(string(kernel)), runtime.Version(), load)
}

const (
	markBegin = "<!-- measured: begin -->\n"
	markEnd   = "<!-- measured: end -->\n"
)

// replace puts text between the marks of a file.
func replace(name, text string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(b), markBegin)
	_, after, ok2 := strings.Cut(rest, markEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no measured marks", name)
	}
	return os.WriteFile(name, []byte(before+markBegin+"\n"+text+"\n"+markEnd+after), 0o644)
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
