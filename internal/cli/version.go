package cli

import (
	"runtime"
	"runtime/debug"

	"holdfast/internal/console"
	"holdfast/internal/webapp"
)

// version is set by the linker for a release; else the build's own data say it.
var version string

// buildVersion is the version and the revision that this program was built from.
func buildVersion() (v, revision string) {
	v = version
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v, ""
	}
	if v == "" {
		v = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	return v, revision
}

type versionCommand struct{}

// Run prints the version, and the digest of the page that this program serves,
// which the page shows too.
func (versionCommand) Run(a *console.App) error {
	v, revision := buildVersion()
	if a.JSON {
		return a.Emit(map[string]string{
			"version": v, "revision": revision, "go": runtime.Version(), "system": runtime.GOOS + "/" + runtime.GOARCH,
			"page": webapp.Digest(),
		})
	}
	a.Say("holdfast %s %s (%s, %s/%s)", v, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if page := webapp.Digest(); page != "" {
		a.Say("page %s", page)
	}
	return nil
}
