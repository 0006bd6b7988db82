package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"holdfast/internal/state"
)

// maxConfigBytes bounds the configuration file: each key is a flag.
const maxConfigBytes = 64 << 10

// configurable are the commands whose flags the environment and the file set,
// beside the global ones: those that run unattended. A name that means one thing
// to `up` and another to `token create` is never set by them for the latter.
var configurable = []string{"up", "relay", "agent"}

// configFile is the file of --config: one JSON object whose keys are names of
// flags. It comes after flags and environment, and an unknown key is an error.
type configFile struct{ values map[string]any }

// load reads the file that the command line or the environment names, and
// compares its keys with the flags there are. It comes before parsing, as the
// parser asks for values while it parses.
func (c *configFile) load(app *kong.Application, args []string) error {
	path := configPath(args)
	if path == "" {
		return nil
	}
	b, err := state.ReadFile(path, maxConfigBytes)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&c.values); err != nil {
		return fmt.Errorf("read configuration %s: %w", path, err)
	}
	if dec.More() {
		return fmt.Errorf("read configuration %s: more than one JSON object", path)
	}
	known := map[string]bool{}
	for _, f := range app.Flags {
		known[f.Name] = true
	}
	for _, child := range app.Children {
		if slices.Contains(configurable, child.Name) {
			addFlags(known, child)
		}
	}
	delete(known, "help")
	delete(known, "config")
	for key, value := range c.values {
		if !known[key] {
			return fmt.Errorf("configuration %s: unknown key %q", path, key)
		}
		if v, err := flagValue(value); err != nil {
			return fmt.Errorf("configuration %s: %s: %w", path, key, err)
		} else {
			c.values[key] = v
		}
	}
	return nil
}

func addFlags(known map[string]bool, node *kong.Node) {
	for _, f := range node.Flags {
		known[f.Name] = true
	}
	for _, child := range node.Children {
		addFlags(known, child)
	}
}

// flagValue turns a value of the file into what kong parses: the text that one
// would write behind the flag.
func flagValue(v any) (any, error) {
	switch v := v.(type) {
	case bool, string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			s, ok := x.(string)
			if !ok {
				return nil, errors.New("a list must hold texts")
			}
			out[i] = s
		}
		return out, nil
	}
	return nil, errors.New("must be a text, a number, true, false, or a list of texts")
}

// Validate is done by load.
func (c *configFile) Validate(*kong.Application) error { return nil }

// Resolve gives a flag its value from the file.
func (c *configFile) Resolve(_ *kong.Context, path *kong.Path, flag *kong.Flag) (any, error) {
	value, ok := c.values[flag.Name]
	if !ok || slices.ContainsFunc(flag.Envs, envSet) {
		return nil, nil
	}
	node := path.Node()
	for node.Parent != nil && node.Parent.Type != kong.ApplicationNode {
		node = node.Parent
	}
	if node.Type != kong.ApplicationNode && !slices.Contains(configurable, node.Name) {
		return nil, nil
	}
	return value, nil
}

func envSet(name string) bool { return os.Getenv(name) != "" }

// configPath finds --config before the command line is parsed.
func configPath(args []string) string {
	for i, a := range args {
		if a == "--" {
			break
		}
		if rest, ok := strings.CutPrefix(a, "--config="); ok {
			return kong.ExpandPath(rest)
		}
		if a == "--config" && i+1 < len(args) {
			return kong.ExpandPath(args[i+1])
		}
	}
	return os.Getenv("HOLDFAST_CONFIG")
}
