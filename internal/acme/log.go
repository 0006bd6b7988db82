package acme

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// core writes what certmagic logs to the process's own log. What it says of
// every step is for whoever looks for a fault.
type core struct {
	log *slog.Logger
	// ended is when the Manager is closed: what breaks off then is no failure.
	ended  <-chan struct{}
	fields []zapcore.Field
}

func bridge(log *slog.Logger, ended <-chan struct{}) *zap.Logger {
	return zap.New(core{log: log, ended: ended})
}

func (c core) level(l zapcore.Level) slog.Level {
	select {
	case <-c.ended:
		return slog.LevelDebug
	default:
	}
	if l >= zapcore.ErrorLevel {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// Enabled implements zapcore.LevelEnabler.
func (c core) Enabled(l zapcore.Level) bool { return c.log.Enabled(context.Background(), c.level(l)) }

// With implements zapcore.Core.
func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{c.log, c.ended, append(slices.Clip(c.fields), fields...)}
}

// Check implements zapcore.Core.
func (c core) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return to.AddCore(e, c)
	}
	return to
}

// Write implements zapcore.Core.
func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(slices.Clip(c.fields), fields...) {
		f.AddTo(enc)
	}
	args := make([]slog.Attr, 0, len(enc.Fields))
	for _, k := range slices.Sorted(maps.Keys(enc.Fields)) {
		name := k
		if k == "error" {
			name = "err"
		}
		args = append(args, slog.Any(name, enc.Fields[k]))
	}
	c.log.LogAttrs(context.Background(), c.level(e.Level), "acme: "+e.Message, args...)
	return nil
}

// Sync implements zapcore.Core.
func (core) Sync() error { return nil }
