package console

import (
	"context"
	"errors"

	"holdfast/internal/local"
)

// Ask puts a question to the up or agent that runs on the state directory.
func (a *App) Ask(ctx context.Context, q local.Request) (local.Answer, error) {
	dir, err := a.Dir()
	if err != nil {
		return local.Answer{}, err
	}
	answer, err := local.Ask(ctx, dir, q)
	if err != nil {
		return local.Answer{}, err
	}
	if answer.Error != "" {
		f := &Failure{Code: ExitFailed, Err: errors.New(answer.Error), Hint: answer.Hint}
		if answer.Denied {
			f.Code = ExitDenied
		}
		return local.Answer{}, f
	}
	return answer, nil
}
