package discover

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// system remembers the listening sockets that were looked at.
type system struct {
	known map[string]Found // by inode and path; Socket is empty where it is no tmux
}

// listening finds sockets on which tmux servers of this user listen, wherever
// they are: the kernel lists every listening socket with its path, also when
// the file is gone. Whose it is costs a look at processes, so that is done for
// new ones only.
func (d *Discoverer) listening(files map[string]Found) []Found {
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil
	}
	if d.sys.known == nil {
		d.sys.known = map[string]Found{}
	}
	var out []Found
	fresh := map[string]Found{} // by inode
	keys := map[string]string{}
	live := map[string]Found{}
	for line := range bytes.SplitSeq(table, []byte("\n")) {
		inode, path, ok := listeningSocket(line)
		if !ok {
			continue
		}
		key := inode + " " + path
		if f, ok := d.sys.known[key]; ok {
			live[key] = f
			if f.Socket != "" {
				out = append(out, f)
			}
			continue
		}
		// A file of another user, or of nobody that we can see, is not looked at,
		// unless it is gone: then only its process tells.
		if info, err := os.Lstat(path); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != d.uid {
				live[key] = Found{}
				continue
			}
		}
		fresh[inode] = Found{Socket: path}
		keys[inode] = key
	}
	if len(fresh) > 0 {
		owners := d.owners(fresh)
		for inode, f := range fresh {
			if owner, ok := owners[inode]; ok {
				f.PID = owner.pid
				if !filepath.IsAbs(f.Socket) {
					f.Socket = filepath.Join(owner.dir, f.Socket)
				}
			} else if _, file := files[f.Socket]; !file {
				f = Found{} // listens, and is no tmux of ours
			}
			live[keys[inode]] = f
			if f.Socket != "" {
				out = append(out, f)
			}
		}
	}
	d.sys.known = live
	return out
}

// listeningSocket reads a line of /proc/net/unix: Num RefCount Protocol Flags
// Type St Inode Path. Flag 0x10000 is a listening socket, an @ an abstract one.
func listeningSocket(line []byte) (inode, path string, ok bool) {
	f := bytes.SplitN(line, []byte(" "), 4)
	if len(f) != 4 {
		return "", "", false
	}
	rest := string(line)
	var fields []string
	for len(fields) < 7 {
		rest = strings.TrimLeft(rest, " ")
		var one string
		one, rest, ok = strings.Cut(rest, " ")
		if !ok {
			return "", "", false
		}
		fields = append(fields, one)
	}
	if fields[3] != "00010000" || rest == "" || rest[0] == '@' {
		return "", "", false
	}
	return fields[6], rest, true
}

type owner struct {
	pid int
	dir string
}

// owners finds which of the sockets belong to tmux servers of this user.
func (d *Discoverer) owners(sockets map[string]Found) map[string]owner {
	out := map[string]owner{}
	for _, pid := range d.servers() {
		proc := "/proc/" + strconv.Itoa(pid)
		fds, err := os.ReadDir(proc + "/fd")
		if err != nil {
			continue
		}
		for _, fd := range fds {
			target, err := os.Readlink(proc + "/fd/" + fd.Name())
			if err != nil {
				continue
			}
			inode, ok := strings.CutPrefix(target, "socket:[")
			if !ok {
				continue
			}
			inode = strings.TrimSuffix(inode, "]")
			if _, ok := sockets[inode]; ok {
				dir, _ := os.Readlink(proc + "/cwd")
				out[inode] = owner{pid, dir}
			}
		}
	}
	return out
}

// servers lists the processes of this user that call themselves a tmux server.
func (d *Discoverer) servers() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		name, err := os.ReadFile("/proc/" + e.Name() + "/comm")
		if err != nil || !bytes.HasPrefix(name, []byte("tmux")) {
			continue
		}
		info, err := os.Stat("/proc/" + e.Name())
		if err != nil {
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == d.uid {
			out = append(out, pid)
		}
	}
	return out
}
