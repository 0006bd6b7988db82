// Package state is the state directory: where Holdfast keeps what must outlive
// a process, what each file in it is called, and who may run on it.
//
// It never looks into a file. What a caller will get wrong: a secret is written
// with WriteFile and nothing else, so that it is never readable by others and
// never half there; and a unix socket in the directory is opened with Listen
// and Dial, since the path of a socket is limited to about 100 bytes and the
// path of a directory is not.
package state

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The files of a state directory.
const (
	StoreFile      = "relay.db"           // the relay's store
	AgentFile      = "agent.json"         // which relay and machine the agent stands for
	AgentTokenFile = "agent.token"        // the agent's token
	DevicesFile    = "devices.json"       // device keys that the agent lets in
	HostEd25519    = "host_ed25519"       // host keys of the built-in SSH server
	HostECDSA      = "host_ecdsa"         //
	DeviceKeyFile  = "device_key"         // this computer's own SSH key
	MachinesFile   = "machines.json"      // machines that this computer is paired with
	KnownHostsFile = "known_hosts"        // their host keys, for OpenSSH
	SSHConfigFile  = "ssh_config"         // their Host blocks, for OpenSSH
	ControlSocket  = "control.sock"       // of the running up or agent
	RelaySocket    = "relay-control.sock" // of the running relay
	UpgradeFile    = "upgrade.json"       // how the last upgrade of a running relay went
	SeenFile       = "seen.json"          // when machines last answered this computer
	PushFile       = "push.json"          // devices to call when a session waits, with their keys
	ActionsFile    = "actions.jsonl"      // which replies and approvals were done
	UploadsDir     = "uploads"            // files that devices sent to this machine
	lockFile       = "lock"
)

// maxLockBytes bounds what is read of a lock file: a process id and a word.
const maxLockBytes = 128

// Dir is an open state directory. The zero Dir is not usable.
type Dir struct{ path string }

// Open makes the directory at path (mode 0700, parents too) or takes the one
// that is there. It refuses one that every user of the computer can write to,
// and one that belongs to another user.
func Open(path string) (Dir, error) {
	if path == "" {
		return Dir{}, errors.New("open state directory: no path")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return Dir{}, fmt.Errorf("open state directory %s: %w", path, err)
	}
	if err := os.MkdirAll(abs, 0o700); err != nil {
		return Dir{}, fmt.Errorf("make state directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(abs, &st); err != nil {
		return Dir{}, fmt.Errorf("open state directory %s: %w", abs, err)
	}
	if st.Mode&0o002 != 0 {
		return Dir{}, fmt.Errorf("open state directory %s: every user of this computer can write to it", abs)
	}
	if uid := os.Geteuid(); uid != 0 && int(st.Uid) != uid {
		return Dir{}, fmt.Errorf("open state directory %s: it belongs to another user", abs)
	}
	return Dir{path: abs}, nil
}

// Path is the absolute path of a file in the directory; Path("") is the
// directory's own.
func (d Dir) Path(name string) string { return filepath.Join(d.path, name) }

// Has reports whether the directory holds a file of this name.
func (d Dir) Has(name string) bool {
	_, err := os.Lstat(d.Path(name))
	return err == nil
}

// ErrLocked says that another process runs on the directory.
var ErrLocked = errors.New("in use by another process")

// LockedError names the process that holds a directory. It is ErrLocked.
type LockedError struct {
	Dir     string
	Command string // "up", "relay" or "agent"; empty if unknown
	PID     int    // 0 if unknown
}

func (e *LockedError) Error() string {
	who := "another holdfast"
	if e.Command != "" {
		who = "holdfast " + e.Command
	}
	if e.PID != 0 {
		who += fmt.Sprintf(" (process %d)", e.PID)
	}
	return fmt.Sprintf("state directory %s is in use by %s", e.Dir, who)
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// Lock takes the directory for one process that serves, until release is called
// or the process ends. Command is what the next one will be told. Error:
// ErrLocked, at once.
func (d Dir) Lock(command string) (release func(), err error) {
	f, err := lock(d.Path(lockFile), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		held := &LockedError{Dir: d.path}
		if b, err := ReadFile(d.Path(lockFile), maxLockBytes); err == nil {
			pid, word, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
			held.PID, _ = strconv.Atoi(pid)
			held.Command = word
		}
		return nil, held
	}
	if err != nil {
		return nil, fmt.Errorf("lock state directory: %w", err)
	}
	// What the file says is for people only; the lock is what counts.
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d %s\n", os.Getpid(), command)
	}
	return func() { f.Close() }, nil
}

// Guard runs change while no other process changes the named file. It waits for
// its turn; changes of small files are short.
func (d Dir) Guard(name string, change func() error) error {
	f, err := lock(d.Path("."+name+".lock"), unix.LOCK_EX)
	if err != nil {
		return fmt.Errorf("lock %s: %w", name, err)
	}
	defer f.Close()
	return change()
}

// lock opens a file of mode 0600 and takes its flock. Closing the file is what
// gives it up; the file stays, since removing it would let two hold it.
func lock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if err == nil {
			return f, nil
		}
		if err != unix.EINTR {
			f.Close()
			return nil, err
		}
	}
}

// ErrTooBig says that a file holds more than its reader allows.
var ErrTooBig = errors.New("file is too big")

// ReadFile reads a file of at most limit bytes. Errors: those of os.Open (so
// fs.ErrNotExist), ErrTooBig.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("read %s, more than %d bytes: %w", path, limit, ErrTooBig)
	}
	return b, nil
}

// WriteFile replaces the file at path whole: a reader sees the old content or
// the new, after a power cut too. A symbolic link at path is replaced, not
// followed.
func WriteFile(path string, data []byte, mode fs.FileMode) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*") // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	// The rename itself is durable once the directory is.
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
