//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/frame"
)

// idle measures what a parked machine costs.
func idle(w io.Writer, s settings) error {
	fmt.Fprintf(w, "\n### Idle machines\n\n"+
		"Bytes of server RSS for each of %d connections, and processor time of the server.\n\n"+
		"| variant | after connect | after GC | after a heartbeat round, GC | after a 4 KiB message each | and GC | goroutines | upgrades/s | CPU µs an upgrade | CPU µs a heartbeat |\n"+
		"|---|---|---|---|---|---|---|---|---|---|\n", s.machines)
	for _, v := range []struct {
		variant string
		secure  bool
	}{{"park", false}, {"goroutine", false}, {"coder", false}, {"relay", false}, {"park", true}, {"coder", true}, {"relay", true}} {
		if err := idleOne(w, s, v.variant, v.secure); err != nil {
			return fmt.Errorf("%s: %w", v.variant, err)
		}
	}
	return nil
}

func name(variant string, secure bool) string {
	if secure {
		return variant + ", TLS"
	}
	return variant
}

func idleOne(w io.Writer, s settings, variant string, secure bool) error {
	srv, err := startServer(variant, secure, s.machines)
	if err != nil {
		return err
	}
	defer srv.stop()
	// What a first connection makes once and for all is not counted.
	for n := range 8 {
		c, err := srv.dialMachine(n)
		if err != nil {
			return err
		}
		if err := exchange(c, append(slices.Clone(long), ping...), 1); err != nil {
			return err
		}
		c.Close()
	}
	time.Sleep(3 * time.Second) // the closing above is over
	base, err := srv.ask("gc")
	if err != nil {
		return err
	}
	conns := make([]net.Conn, s.machines)
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	began := time.Now()
	if err := spread(64, len(conns), func(i int) (err error) {
		conns[i], err = srv.dialMachine(i)
		return err
	}); err != nil {
		return err
	}
	rate := float64(s.machines) / time.Since(began).Seconds()
	per := func(now stats) int64 { return (now.RSS - base.RSS) / int64(s.machines) }
	connected, err := srv.ask("stats")
	if err != nil {
		return err
	}
	upgrade := us(connected.CPU-base.CPU, s.machines)
	// The first round is not timed: a relay finishes there what an upgrade began.
	if err := heartbeats(conns, 1); err != nil {
		return err
	}
	collected, err := srv.ask("gc")
	if err != nil {
		return err
	}
	const rounds = 5
	if err := heartbeats(conns, rounds); err != nil {
		return err
	}
	beaten, err := srv.ask("stats")
	if err != nil {
		return err
	}
	beat := us(beaten.CPU-collected.CPU, rounds*s.machines)
	if beaten, err = srv.ask("gc"); err != nil {
		return err
	}
	if err := spread(2, len(conns), func(i int) error {
		return exchange(conns[i], append(slices.Clone(long), ping...), 1)
	}); err != nil {
		return err
	}
	grown, err := srv.ask("stats")
	if err != nil {
		return err
	}
	last, err := srv.ask("gc")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %d | %.2f | %.0f | %.0f | %.1f |\n", name(variant, secure),
		per(connected), per(collected), per(beaten), per(grown), per(last),
		float64(last.Goroutines-base.Goroutines)/float64(s.machines), rate, upgrade, beat)
	return nil
}

func us(d time.Duration, n int) float64 { return float64(d) / float64(time.Microsecond) / float64(n) }

// heartbeats sends a ping on every connection and reads the pong, in batches of
// 128 by two workers, so that the server finds many sockets ready at once.
func heartbeats(conns []net.Conn, rounds int) error {
	const batch = 128
	for range rounds {
		batches := (len(conns) + batch - 1) / batch
		if err := spread(2, batches, func(i int) error {
			part := conns[i*batch : min(len(conns), (i+1)*batch)]
			for _, c := range part {
				if _, err := c.Write(ping); err != nil {
					return err
				}
			}
			b := make([]byte, len(pong))
			for _, c := range part {
				if _, err := io.ReadFull(c, b); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// spread runs f for 0 to n-1 on a number of workers and returns the first error.
func spread(workers, n int, f func(i int) error) error {
	var next atomic.Int64
	errs := make(chan error, workers)
	for range workers {
		go func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					errs <- nil
					return
				}
				if err := f(i); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	var first error
	for range workers {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

var pumpVariants = []string{"copy", "splice", "coder", "pump", "relay"}

var variantNames = map[string]string{
	"copy":   "plain proxy, 64 KiB read and write",
	"splice": "plain proxy, splice",
	"coder":  "message-copying relay, coder/websocket",
	"pump":   "pump",
	"relay":  "the relay itself",
}

type move struct {
	rate float64 // payload bytes a second
	cpu  float64 // server seconds a GiB
}

// pumps measures the pump beside the others, the variants one right after
// another within each repetition, in an order that turns.
func pumps(w io.Writer, s settings) error {
	sizes := []int{512, 4 << 10, 32 << 10, 256 << 10}
	counts := []int{1, 16}
	servers := map[string]*server{}
	for _, v := range pumpVariants {
		srv, err := startServer(v, false, 1)
		if err != nil {
			return err
		}
		defer srv.stop()
		servers[v] = srv
	}
	type key struct {
		variant     string
		count, size int
	}
	all := map[key][]move{}
	for _, count := range counts {
		for _, size := range sizes {
			for rep := range s.reps {
				for i := range pumpVariants {
					v := pumpVariants[(i+rep)%len(pumpVariants)]
					total := s.bytes
					if v == "coder" {
						total = min(total, int64(size)*32<<10) // it would take minutes
					}
					m, err := pumpOne(servers[v], count, size, total)
					if err != nil {
						return fmt.Errorf("%s, %d × %d bytes: %w", v, count, size, err)
					}
					all[key{v, count, size}] = append(all[key{v, count, size}], m)
				}
			}
		}
	}
	for _, table := range []struct {
		title string
		value func(m, plain move) float64
	}{
		{title: "throughput, MB/s of payload", value: func(m, _ move) float64 { return m.rate / 1e6 }},
		{title: "throughput, ratio to the plain proxy", value: func(m, plain move) float64 { return m.rate / plain.rate }},
		{title: "processor time of the server, s/GiB", value: func(m, _ move) float64 { return m.cpu }},
		{title: "processor time, ratio to the plain proxy", value: func(m, plain move) float64 { return m.cpu / plain.cpu }},
	} {
		fmt.Fprintf(w, "\n### Pump: %s\n\nMedians of %d; ratios are taken within each repetition.\n\n| variant |", table.title, s.reps)
		for _, count := range counts {
			for _, size := range sizes {
				fmt.Fprintf(w, " %d × %s |", count, sizeName(size))
			}
		}
		fmt.Fprint(w, "\n|---|---|---|---|---|---|---|---|---|\n")
		for _, v := range pumpVariants {
			fmt.Fprintf(w, "| %s |", variantNames[v])
			for _, count := range counts {
				for _, size := range sizes {
					var values []float64
					for rep, m := range all[key{v, count, size}] {
						values = append(values, table.value(m, all[key{"copy", count, size}][rep]))
					}
					fmt.Fprintf(w, " %s |", number(median(values)))
				}
			}
			fmt.Fprintln(w)
		}
	}
	return nil
}

// number has three digits that count.
func number(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func sizeName(n int) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	if len(v)%2 == 1 {
		return v[len(v)/2]
	}
	return (v[len(v)/2-1] + v[len(v)/2]) / 2
}

// pumpOne moves total bytes of payload over count streams, device to agent.
func pumpOne(srv *server, count, size int, total int64) (m move, err error) {
	agent, control, err := srv.control()
	if err != nil {
		return m, err
	}
	defer control.Close()
	b, payload := blob(size)
	times := int(max(1, total/int64(count)/payload))
	want := int64(times) * payload
	var devices, machines []net.Conn
	defer func() {
		for _, c := range append(devices, machines...) {
			c.Close()
		}
	}()
	for i := range count {
		d, a, err := srv.pair(i, agent)
		if err != nil {
			return m, err
		}
		devices, machines = append(devices, d), append(machines, a)
	}
	before, err := srv.ask("stats")
	if err != nil {
		return m, err
	}
	began := time.Now()
	errs := make(chan error, 2*count)
	for i := range count {
		go func() {
			for range times {
				if _, err := devices[i].Write(b); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
		go func() {
			buf := make([]byte, 256<<10)
			var r receiver
			for r.payload < want {
				n, err := machines[i].Read(buf)
				if err != nil {
					errs <- fmt.Errorf("after %d of %d bytes: %w", r.payload, want, err)
					return
				}
				r.take(buf[:n])
			}
			errs <- nil
		}()
	}
	for range 2 * count {
		if e := <-errs; e != nil && err == nil {
			err = e
		}
	}
	took := time.Since(began)
	after, aerr := srv.ask("stats")
	if err != nil || aerr != nil {
		return m, errOr(err, aerr)
	}
	moved := float64(want) * float64(count)
	return move{rate: moved / took.Seconds(), cpu: (after.CPU - before.CPU).Seconds() / (moved / (1 << 30))}, nil
}

func errOr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// latency measures a keystroke's round trip, alone and beside a bulk copy.
func latency(w io.Writer, s settings) error {
	fmt.Fprintf(w, "\n### Keystroke round trip\n\n64 B frames, device to agent and back, µs; idle and while another stream copies at full speed. %d round trips, medians of %d.\n\n"+
		"| variant | idle p50 | p99 | beside bulk p50 | p99 | p99 ratio |\n|---|---|---|---|---|---|\n", s.echoes, s.reps/3+1)
	for _, v := range pumpVariants {
		srv, err := startServer(v, false, 2)
		if err != nil {
			return err
		}
		var p [4][]float64
		for range s.reps/3 + 1 {
			for i, disturbed := range []bool{false, true} {
				times, err := disturb(disturbed, srv, func() ([]float64, error) { return echo(srv, s.echoes) })
				if err != nil {
					srv.stop()
					return fmt.Errorf("%s: %w", v, err)
				}
				p[2*i] = append(p[2*i], times[len(times)/2])
				p[2*i+1] = append(p[2*i+1], times[len(times)*99/100])
			}
		}
		srv.stop()
		fmt.Fprintf(w, "| %s | %.0f | %.0f | %.0f | %.0f | %.1f |\n", variantNames[v],
			median(p[0]), median(p[1]), median(p[2]), median(p[3]), median(p[3])/median(p[1]))
	}
	return nil
}

// disturb runs f while another process copies through srv as fast as it can.
func disturb(really bool, srv *server, f func() ([]float64, error)) ([]float64, error) {
	if !really {
		return f()
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "bulk", srv.variant, srv.addr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		in.Close() // tells it to end
		cmd.Wait()
	}()
	// It says when the copy is under way.
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		return nil, fmt.Errorf("the disturbing copy did not start: %w", err)
	}
	return f()
}

// bulk is that other process: it copies until its standard input ends.
func bulk(srv *server) error {
	agent, control, err := srv.control()
	if err != nil {
		return err
	}
	defer control.Close()
	d, a, err := srv.pair(1, agent)
	if err != nil {
		return err
	}
	b, _ := blob(32 << 10)
	var copying sync.WaitGroup
	copying.Go(func() {
		for {
			if _, err := d.Write(b); err != nil {
				return
			}
		}
	})
	copying.Go(func() {
		buf := make([]byte, 256<<10)
		for total := 0; ; {
			n, err := a.Read(buf)
			if err != nil {
				return
			}
			if total += n; total-n < 16<<20 && total >= 16<<20 {
				os.Stdout.Write([]byte{'.'})
			}
		}
	})
	io.Copy(io.Discard, os.Stdin)
	d.Close()
	a.Close()
	copying.Wait()
	return nil
}

// echo returns n round trip times in µs, sorted.
func echo(srv *server, n int) ([]float64, error) {
	agent, control, err := srv.control()
	if err != nil {
		return nil, err
	}
	defer control.Close()
	var others sync.WaitGroup
	defer others.Wait() // ends with the connections, which close before
	d, a, err := srv.pair(0, agent)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	defer a.Close()
	request := clientFrame(nil, frame.Binary, make([]byte, 64))
	others.Go(func() {
		for { // the agent sends back what it gets, masked
			op, payload, err := readFrame(unmasked{a})
			if err != nil {
				return
			}
			if op == frame.Binary {
				if _, err := a.Write(clientFrame(nil, op, payload)); err != nil {
					return
				}
			}
		}
	})
	times := make([]float64, 0, n)
	for range n {
		began := time.Now()
		if _, err := d.Write(request); err != nil {
			return nil, err
		}
		for op := frame.Ping; op != frame.Binary; {
			if op, _, err = readFrame(unmasked{d}); err != nil {
				return nil, err
			}
		}
		times = append(times, us(time.Since(began), 1))
	}
	slices.Sort(times)
	return times, nil
}

// unmasked is where frames come from; through a plain proxy they are masked and
// the key is part of what ParseHeader reads.
type unmasked struct{ net.Conn }

// streams measures the memory of open streams.
func streams(w io.Writer, s settings) error {
	fmt.Fprintf(w, "\n### Open streams\n\nBytes of server RSS for each of %d idle streams (two WebSockets), after 1 KiB each way.\n\n"+
		"| variant | now | after GC | heap | stacks | goroutines |\n|---|---|---|---|---|---|\n", s.pairs)
	for _, v := range []string{"coder", "pump", "relay"} {
		if err := streamsOne(w, s, v); err != nil {
			return fmt.Errorf("%s: %w", v, err)
		}
	}
	return nil
}

func streamsOne(w io.Writer, s settings, variant string) error {
	srv, err := startServer(variant, false, 1)
	if err != nil {
		return err
	}
	defer srv.stop()
	agent, control, err := srv.control()
	if err != nil {
		return err
	}
	defer control.Close()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	kib := clientFrame(nil, frame.Binary, make([]byte, 1<<10))
	buf := make([]byte, 4<<10)
	one := func(id int) error {
		d, a, err := srv.pair(id, agent)
		if err != nil {
			return err
		}
		conns = append(conns, d, a)
		for _, way := range [][2]net.Conn{{d, a}, {a, d}} {
			if _, err := way[0].Write(kib); err != nil {
				return err
			}
			var r receiver
			for r.payload < 1<<10 {
				n, err := way[1].Read(buf)
				if err != nil {
					return err
				}
				r.take(buf[:n])
			}
		}
		return nil
	}
	for id := range 8 {
		if err := one(id); err != nil {
			return err
		}
	}
	base, err := srv.ask("gc")
	if err != nil {
		return err
	}
	for id := range s.pairs {
		if err := one(8 + id); err != nil {
			return err
		}
	}
	now, err := srv.ask("stats")
	if err != nil {
		return err
	}
	after, err := srv.ask("gc")
	if err != nil {
		return err
	}
	per := func(a, b int64) int64 { return (a - b) / int64(s.pairs) }
	fmt.Fprintf(w, "| %s | %d | %d | %d | %d | %.2f |\n", variantNames[variant], per(now.RSS, base.RSS), per(after.RSS, base.RSS),
		per(after.Heap, base.Heap), per(after.Stack, base.Stack), float64(after.Goroutines-base.Goroutines)/float64(s.pairs))
	return nil
}
