package reach

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"holdfast/internal/pairing"
	"holdfast/internal/wire"
)

// TestClosedOutputIsNoticed watches a pipe and a socket on which nothing is
// written, and a file that never closes.
func TestClosedOutputIsNoticed(t *testing.T) {
	pipe := func() (near *os.File, hangUp func()) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		return w, func() { r.Close() }
	}
	socket := func() (near *os.File, hangUp func()) {
		path := filepath.Join(t.TempDir(), "s")
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		a, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		f, err := a.(*net.UnixConn).File()
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
		return f, func() { b.Close() }
	}
	for name, open := range map[string]func() (*os.File, func()){"pipe": pipe, "socket": socket} {
		near, hangUp := open()
		gone := make(chan struct{})
		stop := watchClosed(near, func() { close(gone) })
		select {
		case <-gone:
			t.Errorf("%s: it is called closed although it is open", name)
		case <-time.After(50 * time.Millisecond):
			hangUp()
			select {
			case <-gone:
			case <-time.After(60 * time.Second):
				t.Errorf("%s: nobody noticed that the reader has gone", name)
			}
		}
		stop()
		near.Close()
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stop := watchClosed(file, func() { t.Error("a file is called closed") })
	time.Sleep(50 * time.Millisecond)
	stop() // returns, so the watcher has ended
}

func TestReadLink(t *testing.T) {
	key, err := pairing.ParseKey("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDgJOUF5j/g+FOK+D3SNqs1WGnmyqjpOtwgqVqCwtr0h")
	if err != nil {
		t.Fatal(err)
	}
	link, err := pairing.Link{
		Relay: "https://relay.example", Machine: "mini", HostKeys: []pairing.Key{key},
		Secret: pairing.NewSecret(), Expires: time.Now().Add(time.Minute).Truncate(time.Second),
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string]string{
		"one line": link + "\n", "no line end": link, "spaces": "\n  " + link + "  \n",
		"broken by a terminal": link[:60] + "\n" + link[60:120] + "\r\n" + link[120:] + "\n\n",
		"more behind it":       link + "\nignored\n",
	} {
		got, err := readLink(strings.NewReader(in))
		if err != nil || got != link {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A person at a keyboard does not end the input: the first whole link does.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, err := w.WriteString(link + "\n"); err != nil {
		t.Fatal(err)
	}
	r.SetReadDeadline(time.Now().Add(60 * time.Second))
	if got, err := readLink(r); err != nil || got != link {
		t.Errorf("without an end: %v", err)
	}
	if got, err := readLink(strings.NewReader(strings.Repeat("x", 1<<20))); len(got) > maxLinkText {
		t.Errorf("%d bytes were read as a link (%v)", len(got), err)
	}
}

func TestFindDevice(t *testing.T) {
	devices := []wire.DeviceInfo{{ID: "d1", Name: "laptop"}, {ID: "d2", Name: "phone"}, {ID: "d3", Name: "Phone"}, {ID: "laptop", Name: "x"}}
	for id, want := range map[string]string{"d2": "d2", "LAPTOP": "d1", "laptop": "laptop", "x": "laptop"} {
		if d, err := findDevice(devices, id); err != nil || d.ID != want {
			t.Errorf("%s: %s, %v", id, d.ID, err)
		}
	}
	for _, id := range []string{"phone", "nosuch", ""} {
		if d, err := findDevice(devices, id); err == nil {
			t.Errorf("%q: found %s", id, d.ID)
		}
	}
}

func TestOpenSSHVersion(t *testing.T) {
	for text, want := range map[string]bool{
		"OpenSSH_9.2p1 Debian-2+deb12u10, OpenSSL 3.0.19": true, "OpenSSH_8.5p1": true, "OpenSSH_8.4p1": false,
		"OpenSSH_7.9p1": false, "OpenSSH_10.0p2": true, "OpenSSH_for_Windows_9.5p1": true, "dropbear": false, "": false,
	} {
		if got := knowsKnownHostsCommand(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// What stands behind the machine's name must reach ssh(1) as it was typed.
func TestSSHArgsStayWhole(t *testing.T) {
	for _, args := range [][]string{
		nil,
		{"-tt", "ls", "-la"},
		{"-vvv"},
		{"-4N"},
		{"-At", "-vv", "top"},
		{"-p22", "x"},
		{"-L8080:127.0.0.1:80", "-N"},
		{"-oUser=x", "ls"},
		{"-o", "SetEnv=A=b", "ls"},
		{"-t", "t", "ls"},
		{"-v=1"},
		{"--", "-tt"},
		{"ls", "--", "-x"},
		{"", "a b", "é"},
		{"-t", ""},
	} {
		var tree struct {
			SSH SSH `cmd:"" name:"ssh"`
		}
		parser, err := kong.New(&tree)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(append([]string{"ssh", "mini"}, args...)); err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		if tree.SSH.Machine != "mini" || !slices.Equal(tree.SSH.Args, args) {
			t.Errorf("%q: machine %q, arguments %q", args, tree.SSH.Machine, tree.SSH.Args)
		}
	}
}

// A full disk has lost bytes of the stream; a reader who left has wanted no more.
func TestStdoutLost(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no /dev/full")
	}
	defer full.Close()
	s := &stdio{out: full}
	if _, err := s.Write([]byte("x")); err == nil || s.lost.Load() == nil {
		t.Errorf("a write to a full disk: %v, kept as lost: %v", err, s.lost.Load() != nil)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	s = &stdio{out: w}
	if _, err := s.Write([]byte("x")); err == nil || s.lost.Load() != nil {
		t.Errorf("a write to a closed pipe: %v, kept as lost: %v", err, s.lost.Load() != nil)
	}
}
