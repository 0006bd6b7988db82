// A component that is drawn again only when one of its properties is another
// value: a conversation of a thousand items gains one without drawing the rest.

import { Component, createElement, type FunctionComponent, type VNode } from "preact";

export const memo = <P extends object>(View: FunctionComponent<P>): FunctionComponent<P> => {
  class Memo extends Component<P> {
    override shouldComponentUpdate(next: P): boolean {
      const was = this.props as Record<string, unknown>;
      return Object.entries(next).some(([k, v]) => !Object.is(v, was[k]));
    }
    override render(): VNode {
      return createElement(View as FunctionComponent<any>, this.props as any);
    }
  }
  return Memo as unknown as FunctionComponent<P>;
};
