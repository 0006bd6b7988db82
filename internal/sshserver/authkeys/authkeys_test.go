package authkeys

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"holdfast/internal/pairing"
)

func newKey(t *testing.T) pairing.Key {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var blob []byte
	for _, part := range [][]byte{[]byte(pairing.TypeEd25519), public} {
		blob = append(binary.BigEndian.AppendUint32(blob, uint32(len(part))), part...)
	}
	k, err := pairing.ParseKeyBlob(blob)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// newHome makes a home directory whose authorized_keys holds content; no file
// for an empty one.
func newHome(t *testing.T, content string) (home, file string) {
	t.Helper()
	home = t.TempDir()
	file = filepath.Join(home, ".ssh", "authorized_keys")
	if content != "" {
		if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return home, file
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

// onlyFile fails when a temporary file was left behind.
func onlyFile(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "authorized_keys" {
			t.Errorf("%s was left in %s", e.Name(), dir)
		}
	}
}

func TestAddMakesDirectoryAndFile(t *testing.T) {
	home, file := newHome(t, "")
	e := Entry{Key: newKey(t), Device: "d1", Name: "laptop"}
	if err := Add(home, e); err != nil {
		t.Fatal(err)
	}
	if got, want := readFile(t, file), e.Key.Line()+" # holdfast device d1 laptop\n"; got != want {
		t.Errorf("file is %q, want %q", got, want)
	}
	if m := mode(t, file); m != 0o600 {
		t.Errorf("file has mode %04o, want 0600", m)
	}
	if m := mode(t, filepath.Dir(file)); m != 0o700 {
		t.Errorf("directory has mode %04o, want 0700", m)
	}
	onlyFile(t, filepath.Dir(file))
}

func TestAddKeepsEveryByteOfTheRest(t *testing.T) {
	for _, content := range []string{
		"ssh-ed25519 AAAA someone\n",
		"ssh-ed25519 AAAA no newline at the end",
		"# a comment\r\n\r\n  \nrestrict,command=\"echo # holdfast device\" ssh-rsa BBBB x\r\n",
		"\xff\xfe not text \x00\n",
		"ssh-ed25519 AAAA # holdfast devices of mine\n",
	} {
		home, file := newHome(t, content)
		e := Entry{Key: newKey(t), Device: "d1", Name: "phone"}
		if err := Add(home, e); err != nil {
			t.Fatal(err)
		}
		want := content
		if !strings.HasSuffix(want, "\n") {
			want += "\n"
		}
		want += e.Line() + "\n"
		if got := readFile(t, file); got != want {
			t.Errorf("after add: %q, want %q", got, want)
		}
		r, err := Remove(home, e.Key, "")
		if err != nil || r != (Result{Removed: 1}) {
			t.Errorf("remove gave %+v, %v", r, err)
		}
		if got, want := readFile(t, file), strings.TrimSuffix(want, e.Line()+"\n"); got != want {
			t.Errorf("after remove: %q, want %q", got, want)
		}
		onlyFile(t, filepath.Dir(file))
	}
}

func TestAddTwiceChangesNothing(t *testing.T) {
	home, file := newHome(t, "ssh-ed25519 AAAA someone\n")
	e := Entry{Key: newKey(t), Device: "d1", Name: "phone"}
	if err := Add(home, e); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := Add(home, e); err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("the second add wrote the file again")
	}
}

func TestAddReplacesTheKeysOlderLine(t *testing.T) {
	key, other := newKey(t), newKey(t)
	old := Entry{Key: key, Device: "d1", Name: "old name"}
	rest := Entry{Key: other, Device: "d2", Name: "tablet"}
	home, file := newHome(t, old.Line()+"\n"+rest.Line()+"\n"+old.Line()+"\n")
	fresh := Entry{Key: key, Device: "d9", Name: "new name"}
	if err := Add(home, fresh); err != nil {
		t.Fatal(err)
	}
	if got, want := readFile(t, file), rest.Line()+"\n"+fresh.Line()+"\n"; got != want {
		t.Errorf("file is %q, want %q", got, want)
	}
}

func TestAddKeepsALineWithThePersonsOptions(t *testing.T) {
	e := Entry{Key: newKey(t), Device: "d1", Name: "phone"}
	content := "from=\"10.0.0.0/8, 192.168.0.0/16\",restrict " + e.Line() + "\n"
	home, file := newHome(t, content)
	if err := Add(home, e); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, file); got != content {
		t.Errorf("file is %q, want it unchanged", got)
	}
	if r, err := Remove(home, e.Key, ""); err != nil || r.Removed != 1 {
		t.Errorf("remove gave %+v, %v; a marked line goes, options or not", r, err)
	}
}

func TestRemoveTakesMarkedLinesOnly(t *testing.T) {
	key := newKey(t)
	marked := Entry{Key: key, Device: "d1", Name: "phone"}.Line() + "\n"
	other := Entry{Key: newKey(t), Device: "d2", Name: "tablet"}.Line() + "\n"
	unmarked := key.Line() + " me@home\n"
	comment := "# " + marked
	home, file := newHome(t, unmarked+marked+comment+other)
	r, err := Remove(home, key, "")
	if err != nil {
		t.Fatal(err)
	}
	if r != (Result{Removed: 1, Unmarked: true}) {
		t.Errorf("result is %+v, want one removed and the unmarked one told of", r)
	}
	if got, want := readFile(t, file), unmarked+comment+other; got != want {
		t.Errorf("file is %q, want %q", got, want)
	}
	if r, err := Remove(home, pairing.Key{}, "d2"); err != nil || r.Removed != 1 {
		t.Errorf("by device: %+v, %v", r, err)
	}
	if r, err := Remove(home, pairing.Key{}, ""); err != nil || r.Removed != 0 {
		t.Errorf("by nothing: %+v, %v", r, err)
	}
}

func TestRemoveFromMissingFileMakesNothing(t *testing.T) {
	home := t.TempDir()
	if r, err := Remove(home, newKey(t), ""); err != nil || r != (Result{}) {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, err := os.Lstat(filepath.Join(home, ".ssh")); !errors.Is(err, os.ErrNotExist) {
		t.Error("remove made ~/.ssh")
	}
}

func TestHostileNamesStayInOneLine(t *testing.T) {
	key := newKey(t)
	for _, name := range []string{
		"a\nssh-ed25519 EVIL x", "a\r\nb", "a\u2028b", "\x00\x1b[2J", "\xff\xfe", strings.Repeat("ä", 500), "  many   blanks  ", "スマホ",
	} {
		line := Entry{Key: key, Device: "d\n1 x", Name: name}.Line()
		if strings.ContainsAny(line, "\r\n\x00\x1b\u2028") || len(line) > 400 {
			t.Errorf("name %q gives %q", name, line)
		}
		p := parseLine([]byte(line))
		if !p.ours() || p.key != key.Line() || p.options || strings.Contains(p.device, " ") {
			t.Errorf("line %q is read as %+v", line, p)
		}
	}
}

func TestRefusals(t *testing.T) {
	const content = "ssh-ed25519 AAAA someone\n"
	e := Entry{Key: newKey(t), Device: "d1", Name: "phone"}
	tests := []struct {
		name    string
		prepare func(t *testing.T, home, file string)
		want    error
	}{
		{"file is a link", func(t *testing.T, home, file string) {
			must(t, os.Rename(file, filepath.Join(home, "real")))
			must(t, os.Symlink(filepath.Join(home, "real"), file))
		}, ErrSymlink},
		{"file is a dangling link", func(t *testing.T, home, file string) {
			must(t, os.Remove(file))
			must(t, os.Symlink(filepath.Join(home, "nowhere"), file))
		}, ErrSymlink},
		{"directory is a link", func(t *testing.T, home, file string) {
			must(t, os.Rename(filepath.Dir(file), filepath.Join(home, "real")))
			must(t, os.Symlink(filepath.Join(home, "real"), filepath.Dir(file)))
		}, ErrSymlink},
		{"file is a pipe", func(t *testing.T, home, file string) {
			must(t, os.Remove(file))
			must(t, unix.Mkfifo(file, 0o600))
		}, ErrNotRegular},
		{"file is a directory", func(t *testing.T, home, file string) {
			must(t, os.Remove(file))
			must(t, os.Mkdir(file, 0o700))
		}, ErrNotRegular},
		{"file is read-only", func(t *testing.T, home, file string) {
			must(t, os.Chmod(file, 0o400))
		}, ErrReadOnly},
		{"file is too big", func(t *testing.T, home, file string) {
			must(t, os.Truncate(file, maxFileBytes+1))
		}, ErrTooBig},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			home, file := newHome(t, content)
			tt.prepare(t, home, file)
			before, err := os.Lstat(file)
			must(t, err)
			if err := Add(home, e); !errors.Is(err, tt.want) {
				t.Fatalf("error is %v, want %v", err, tt.want)
			}
			after, err := os.Lstat(file)
			must(t, err)
			if !os.SameFile(before, after) || before.Mode() != after.Mode() {
				t.Error("the file was replaced")
			}
			if real, err := os.ReadFile(filepath.Join(home, "real")); err == nil && string(real) != content {
				t.Error("the link was followed")
			}
			if _, err := os.Lstat(filepath.Join(home, "nowhere")); err == nil {
				t.Error("the dangling link was followed")
			}
		})
	}
}

func TestRemoveFromReadOnlyFile(t *testing.T) {
	e := Entry{Key: newKey(t), Device: "d1", Name: "phone"}
	home, file := newHome(t, e.Line()+"\n")
	must(t, os.Chmod(file, 0o400))
	if r, err := Remove(home, e.Key, ""); err != nil || r.Removed != 1 {
		t.Errorf("got %+v, %v; a right is taken away from a read-only file too", r, err)
	}
}

func TestOwnerIsKept(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("not root: only the own user's file can be made")
	}
	home, file := newHome(t, "ssh-ed25519 AAAA someone\n")
	want := os.Getuid()
	if want == 0 {
		want = 12345
		must(t, os.Chown(file, want, want))
	}
	must(t, Add(home, Entry{Key: newKey(t), Device: "d1"}))
	var st unix.Stat_t
	must(t, unix.Stat(file, &st))
	if int(st.Uid) != want {
		t.Errorf("owner is %d, want %d", st.Uid, want)
	}
}

func TestManyAtOnce(t *testing.T) {
	home, file := newHome(t, "ssh-ed25519 AAAA someone")
	const n = 24
	var wg sync.WaitGroup
	keys := make([]pairing.Key, n)
	for i := range n {
		keys[i] = newKey(t)
		wg.Go(func() {
			if err := Add(home, Entry{Key: keys[i], Device: fmt.Sprint("d", i)}); err != nil {
				t.Error(err)
			}
			if i%2 == 0 {
				if _, err := Remove(home, keys[i], ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	got := readFile(t, file)
	for i, k := range keys {
		if has, want := strings.Contains(got, k.Line()+" "), i%2 == 1; has != want {
			t.Errorf("key %d is there: %v, want %v", i, has, want)
		}
	}
	if !strings.HasPrefix(got, "ssh-ed25519 AAAA someone\n") || strings.Count(got, "\n") != n/2+1 {
		t.Errorf("file is %q", got)
	}
	onlyFile(t, filepath.Dir(file))
}

func TestAWriterWithoutTheLockIsNotOverwritten(t *testing.T) {
	home, file := newHome(t, "ssh-ed25519 AAAA one\n")
	tries := 0
	err := rewrite(home, true, func(content []byte) ([]byte, bool) {
		if tries++; tries == 1 {
			must(t, os.WriteFile(file, append(content, "ssh-ed25519 BBBB two\n"...), 0o600))
		}
		return append(content, "ssh-ed25519 CCCC ours\n"...), true
	})
	must(t, err)
	if got, want := readFile(t, file), "ssh-ed25519 AAAA one\nssh-ed25519 BBBB two\nssh-ed25519 CCCC ours\n"; got != want {
		t.Errorf("file is %q, want %q", got, want)
	}
	onlyFile(t, filepath.Dir(file))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func FuzzEdit(f *testing.F) {
	f.Add([]byte("ssh-ed25519 AAAA x\n# holdfast device a\n"), "name")
	f.Add([]byte("\n# holdfast device "), "# holdfast device x")
	f.Add([]byte("a b # holdfast device"), "")
	f.Fuzz(func(t *testing.T, content []byte, name string) {
		blob := append([]byte("\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"), make([]byte, 32)...)
		key, err := pairing.ParseKeyBlob(blob)
		must(t, err)
		e := Entry{Key: key, Device: "d1", Name: name}
		clean, _ := remove(content, key, "")
		out, changed := add(clean, e)
		if !changed {
			t.Fatal("add changed nothing")
		}
		if again, changed := add(out, e); changed || string(again) != string(out) {
			t.Fatalf("a second add made %q of %q", again, out)
		}
		back, r := remove(out, key, "")
		want := string(clean)
		if want != "" && !strings.HasSuffix(want, "\n") {
			want += "\n"
		}
		if r.Removed != 1 || string(back) != want {
			t.Fatalf("removed %d, left %q of %q", r.Removed, back, want)
		}
	})
}
