// Package child ties a process that is started to this one, so that nothing is
// left behind when this one is killed.
//
// It starts nothing. What a caller will get wrong: With must come before Start,
// and only Linux does it; elsewhere what could be left is noted and ended at the
// next start.
package child
