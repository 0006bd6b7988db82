package proof

import (
	"strings"
	"unique"

	"holdfast/internal/wire"
)

// Greeting is what an agent said of itself, or nothing.
type Greeting struct {
	Version  string
	Features []string
	Services []wire.ServiceName
}

// Hello is a Greeting as a registry keeps it: in one word, since most agents say
// the same. The zero Hello is that of an agent that said nothing.
type Hello struct{ handle unique.Handle[hello] }

type hello struct{ version, features, services string } // lists joined with listSep

const listSep = "\n"

// listItems bounds a list in a hello.
const listItems = 64

// KeepHello keeps what counts of a hello: of its lists, the items that are names.
func KeepHello(m wire.Message) Hello {
	return Hello{unique.Make(hello{
		version:  wire.CleanReason(m.Version),
		features: joinList(m.Features),
		services: joinList(m.Services),
	})}
}

// Greeting is what was kept.
func (h Hello) Greeting() Greeting {
	if h == (Hello{}) {
		return Greeting{}
	}
	v := h.handle.Value()
	return Greeting{Version: v.version, Features: splitList[string](v.features), Services: splitList[wire.ServiceName](v.services)}
}

func joinList[S ~string](items []S) string {
	var names []string
	for _, s := range items[:min(len(items), listItems)] {
		if _, err := wire.ParseMachineID(string(s)); err == nil {
			names = append(names, string(s))
		}
	}
	return strings.Join(names, listSep)
}

func splitList[S ~string](joined string) []S {
	if joined == "" {
		return nil
	}
	var out []S
	for s := range strings.SplitSeq(joined, listSep) {
		out = append(out, S(s))
	}
	return out
}
