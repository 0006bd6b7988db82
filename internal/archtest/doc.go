// Package archtest holds the rules about this repository that no compiler
// checks: which package may import which, what only the command line may touch,
// how long files may grow, which third-party modules are linked, and that the
// documents say what the code does. It has tests only, and nothing imports it.
//
// What a reader will get wrong: a rule that is in the way is changed in its
// table, with the reason beside it, in the same commit as the code that needs
// it; it is never worked round.
package archtest
