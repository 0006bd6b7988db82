package channels

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
)

// Storage keeps what the helpers must not lose: small values under a bucket and
// a key, each with a revision. Memory and package livesql implement it; both
// pass livetest.Storage. Every method is safe for concurrent use.
type Storage interface {
	// Load returns a value and its revision; a missing one has revision 0.
	Load(ctx context.Context, bucket, key string) (value []byte, revision int64, err error)
	// Save writes a value whose revision is still the one given (0: there is
	// none yet): ErrConflict otherwise. It is durable when it returns.
	Save(ctx context.Context, bucket, key string, value []byte, revision int64) error
	// Remove removes a value, if there is one.
	Remove(ctx context.Context, bucket, key string) error
	// List returns up to limit items whose key is after a key, in the order of
	// their keys' bytes.
	List(ctx context.Context, bucket, after string, limit int) ([]Item, error)
}

// Item is one stored value.
type Item struct {
	Key   string
	Value []byte
}

// ErrConflict says that a value was changed since it was loaded.
var ErrConflict = errors.New("changed by somebody else meanwhile")

// Memory is a Storage that is gone with the process.
type Memory struct {
	mu      sync.Mutex
	buckets map[string]*bucket
}

type bucket struct {
	keys   []string // sorted
	values map[string]stored
}

type stored struct {
	value    []byte
	revision int64
}

// NewMemory makes an empty Memory.
func NewMemory() *Memory { return &Memory{buckets: make(map[string]*bucket)} }

// Load implements Storage.
func (m *Memory) Load(_ context.Context, name, key string) ([]byte, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.buckets[name]
	if b == nil {
		return nil, 0, nil
	}
	s := b.values[key]
	return slices.Clone(s.value), s.revision, nil
}

// Save implements Storage.
func (m *Memory) Save(_ context.Context, name, key string, value []byte, revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.buckets[name]
	if b == nil {
		b = &bucket{values: make(map[string]stored)}
		m.buckets[name] = b
	}
	now := b.values[key]
	if now.revision != revision {
		return ErrConflict
	}
	if revision == 0 {
		i, _ := slices.BinarySearch(b.keys, key)
		b.keys = slices.Insert(b.keys, i, key)
	}
	b.values[key] = stored{slices.Clone(value), revision + 1}
	return nil
}

// Remove implements Storage.
func (m *Memory) Remove(_ context.Context, name, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.buckets[name]
	if b == nil {
		return nil
	}
	if i, found := slices.BinarySearch(b.keys, key); found {
		b.keys = slices.Delete(b.keys, i, i+1)
		delete(b.values, key)
	}
	return nil
}

// List implements Storage.
func (m *Memory) List(_ context.Context, name, after string, limit int) ([]Item, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.buckets[name]
	if b == nil || limit <= 0 {
		return nil, nil
	}
	i, found := slices.BinarySearchFunc(b.keys, after, strings.Compare)
	if found {
		i++
	}
	var out []Item
	for ; i < len(b.keys) && len(out) < limit; i++ {
		out = append(out, Item{b.keys[i], slices.Clone(b.values[b.keys[i]].value)})
	}
	return out, nil
}
