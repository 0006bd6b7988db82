package sshserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/pairing"
	"holdfast/internal/state"
)

func TestADamagedDeviceFileIsKeptAndSaid(t *testing.T) {
	k, _ := newDeviceKey(t)
	entry := fmt.Sprintf(`{"id":"a","name":"n","key":%q,"added":"2026-01-01T00:00:00Z"}`, k.Public().Line())
	for name, text := range map[string]string{
		"empty":         "",
		"not JSON":      "hello",
		"cut off":       `{"v":1,"devices":[`,
		"two values":    `{"v":1,"devices":[]}{}`,
		"no version":    `{"devices":[]}`,
		"later version": `{"v":2,"devices":[]}`,
		"unknown field": `{"v":1,"devices":[],"more":1}`,
		"bad key":       `{"v":1,"devices":[{"id":"a","key":"ssh-ed25519 AAAA","added":"2026-01-01T00:00:00Z"}]}`,
		"no id":         `{"v":1,"devices":[` + strings.Replace(entry, `"a"`, `""`, 1) + `]}`,
		"twice":         `{"v":1,"devices":[` + entry + `,` + entry + `]}`,
		"null":          "null",
		"huge":          `{"v":1,"devices":[]}` + strings.Repeat(" ", maxDevicesBytes),
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, state.DevicesFile)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		if d, err := OpenDeviceKeys(dir); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %+v, %v, want an error that names the file", name, d, err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, state.DevicesFile), []byte(`{"v":1,"devices":[`+entry+`]}`), 0o600))
	d, err := OpenDeviceKeys(dir)
	must(t, err)
	if _, ok := d.ByKey(k.Public()); !ok {
		t.Error("a good file was not read")
	}
}

func TestADeviceFileThatOthersWriteIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, state.DevicesFile)
	must(t, os.WriteFile(file, []byte(`{"v":1,"devices":[]}`), 0o600))
	must(t, os.Chmod(file, 0o666))
	if _, err := OpenDeviceKeys(dir); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("error is %v", err)
	}
}

func TestDeviceKeys(t *testing.T) {
	dir := t.TempDir()
	d, err := OpenDeviceKeys(dir)
	must(t, err)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	a, _ := newDeviceKey(t)
	b, _ := newDeviceKey(t)
	dev, err := d.add(a.Public(), "id1", "a", now)
	must(t, err)
	if dev.ID != "id1" {
		t.Errorf("id is %q", dev.ID)
	}
	// Neither another's id nor a strange one is taken over.
	for _, id := range []string{"id1", "", "two words", "../x", strings.Repeat("x", 65)} {
		dev, err = d.add(b.Public(), id, "b", now)
		must(t, err)
		if dev.ID != keyID(b.Public()) || len(dev.ID) != 10 {
			t.Errorf("id %q became %q", id, dev.ID)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, state.DevicesFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file: %v, %v", info.Mode(), err)
	}
	must(t, d.touch(a.Public(), now.Add(time.Hour)))
	must(t, d.touch(a.Public(), now.Add(time.Hour+30*time.Second))) // too soon to write
	if dev, _ := d.ByKey(a.Public()); !dev.Used.Equal(now.Add(time.Hour)) {
		t.Errorf("used is %v", dev.Used)
	}
	again, err := OpenDeviceKeys(dir)
	must(t, err)
	if len(again.All()) != 2 || again.All()[0] != d.All()[0] {
		t.Errorf("read back %+v", again.All())
	}
	if removed, err := d.remove(pairing.Key{}, ""); err != nil || len(removed) != 0 {
		t.Errorf("nothing removes %v, %v", removed, err)
	}
	if removed, err := d.remove(pairing.Key{}, "id1"); err != nil || len(removed) != 1 || removed[0].Key != a.Public() {
		t.Errorf("id1 removes %v, %v", removed, err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("files left behind: %v", entries)
	}
}

func TestDevicesAreBoundedAndConcurrent(t *testing.T) {
	d, err := OpenDeviceKeys(t.TempDir())
	must(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	over := 0
	for range 8 {
		wg.Go(func() {
			for range maxDevices/8 + 1 {
				k, err := freshKey()
				if err == nil {
					_, err = d.add(k, "", "x", time.Now())
				}
				if errors.Is(err, ErrTooManyDevices) {
					mu.Lock()
					over++
					mu.Unlock()
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(d.All()) != maxDevices || over != 8 {
		t.Errorf("%d devices, %d refused", len(d.All()), over)
	}
}

func TestHostKeysStay(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	got := make([][]pairing.Key, 8)
	for i := range got { // several processes at a first run
		wg.Go(func() {
			h, err := LoadOrCreateHostKeys(dir)
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = h.Public()
		})
	}
	wg.Wait()
	for _, keys := range got {
		if len(keys) != 2 || keys[0] != got[0][0] || keys[1] != got[0][1] {
			t.Errorf("keys are %v and %v", got[0], keys)
		}
	}
	if got[0][0].Type() != pairing.TypeEd25519 || got[0][1].Type() != pairing.TypeP256 {
		t.Errorf("types are %v", got[0])
	}
	for _, f := range []string{"host_ed25519", "host_ecdsa"} {
		if info, err := os.Stat(filepath.Join(dir, f)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "host_ed25519"), []byte("damaged"), 0o600))
	if _, err := LoadOrCreateHostKeys(dir); err == nil {
		t.Error("a damaged host key was replaced by a new one")
	}
}
