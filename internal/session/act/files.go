package act

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// keepFiles is how long an uploaded file stays: a conversation that names it
	// is resumed within weeks or never.
	keepFiles = 30 * 24 * time.Hour
	// maxFilesBytes bounds what is kept altogether; the oldest go first.
	maxFilesBytes = 1 << 30
	// maxFileName bounds a name, of 255 bytes that file systems allow, less what
	// stands in front.
	maxFileName = 100
	// partSuffix marks a file that is not complete.
	partSuffix = ".part"
	// keepParts is how long one may stay that nobody finishes.
	keepParts = time.Hour
)

// Uploads is a directory of files that devices have sent.
type Uploads struct{ dir string }

// NewUploads uses the directory, which is made with the first file (0700).
func NewUploads(dir string) *Uploads { return &Uploads{dir} }

// Uploaded is a file that is being written.
type Uploaded struct {
	f    *os.File
	part string
	path string
}

// Create begins a file whose name a person chose; the directory decides where it
// lies. It is readable by the owner only.
func (u *Uploads) Create(name string) (*Uploaded, error) {
	if err := os.MkdirAll(u.dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep an uploaded file: %w", err)
	}
	u.sweep(time.Now())
	// The random part keeps one file from being another; the time sorts them.
	path := filepath.Join(u.dir, time.Now().UTC().Format("20060102-150405-")+strings.ToLower(rand.Text()[:8])+"-"+FileName(name))
	f, err := os.OpenFile(path+partSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keep an uploaded file: %w", err)
	}
	return &Uploaded{f: f, part: path + partSuffix, path: path}, nil
}

// FileName is what remains of a name that a person chose: its last element, of
// letters, digits, ".", "_" and "-", so that it needs no quotes anywhere.
func FileName(name string) string {
	if i := strings.LastIndexAny(name, `/\`); i >= 0 {
		name = name[i+1:]
	}
	name = strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return -1
		case unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r) || r == '.' || r == '_' || r == '-':
			return r
		case unicode.IsControl(r) || unicode.Is(unicode.Cf, r):
			return -1
		}
		return '_'
	}, name)
	name = strings.TrimLeft(name, ".-")
	if len(name) > maxFileName {
		// The end says what kind of file it is.
		ext := filepath.Ext(name)
		if len(ext) > 16 {
			ext = ""
		}
		cut := maxFileName - len(ext)
		for cut > 0 && !utf8.RuneStart(name[cut]) {
			cut--
		}
		name = name[:cut] + ext
	}
	if name == "" || strings.HasSuffix(name, partSuffix) {
		name += "file"
	}
	return name
}

// Write appends to the file.
func (f *Uploaded) Write(p []byte) (int, error) {
	n, err := f.f.Write(p)
	if err != nil {
		err = fmt.Errorf("keep an uploaded file: %w", err)
	}
	return n, err
}

// Keep ends the file and gives its absolute path.
func (f *Uploaded) Keep() (string, error) {
	err := f.f.Close()
	if err == nil {
		err = os.Rename(f.part, f.path)
	}
	if err != nil {
		os.Remove(f.part)
		return "", fmt.Errorf("keep an uploaded file: %w", err)
	}
	return f.path, nil
}

// Discard removes the file.
func (f *Uploaded) Discard() {
	f.f.Close()
	os.Remove(f.part)
}

// sweep removes files that are too old or too many. What it cannot remove stays:
// the next upload tries again.
func (u *Uploads) sweep(now time.Time) {
	entries, err := os.ReadDir(u.dir) // sorted by name, which is by time
	if err != nil {
		return
	}
	var total int64
	for i := len(entries) - 1; i >= 0; i-- {
		info, err := entries[i].Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		age := now.Sub(info.ModTime())
		total += info.Size()
		if age > keepFiles || total > maxFilesBytes || age > keepParts && strings.HasSuffix(info.Name(), partSuffix) {
			os.Remove(filepath.Join(u.dir, entries[i].Name()))
		}
	}
}
