"""print a script with which bash, zsh or fish complete commands, flags and paths.

Prints a script for your shell. Write it to where the shell looks for it, and start a new shell;
then the Tab key completes commands, flags and paths.

  bash  ~/.local/share/bash-completion/completions/shardwright, if the package bash-completion is
        installed; or any file that ~/.bashrc sources
  zsh   _shardwright in a folder of fpath, for example ~/.zfunc after fpath=(~/.zfunc $fpath) and
        autoload -U compinit && compinit in ~/.zshrc
  fish  ~/.config/fish/completions/shardwright.fish

Write it again after an update of shardwright. --json puts the script in an object.

  shardwright completion bash > ~/.local/share/bash-completion/completions/shardwright
  shardwright completion zsh > ~/.zfunc/_shardwright
  shardwright completion fish > ~/.config/fish/completions/shardwright.fish

exit status:
  0    done
  1    failed
  2    wrong usage
  130  interrupted (terminated: 143, hung up: 129)
"""

from __future__ import annotations

import argparse

from shardwright.cli.options import Flag, Known, as_path
from shardwright.cli.printing import print_json, say

FLAGS: dict[str, Flag] = {
    "shell": {"nargs": None, "choices": ("bash", "zsh", "fish"), "help": "bash, zsh or fish"}
}


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    import shtab  # here, as only this command needs it

    from shardwright.cli.main import parser  # here, because it imports this module

    top = parser()
    (commands,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    for named in commands._get_subactions():
        command = commands.choices[named.dest]
        command.description = named.help  # shells show its first line
        for action in command._actions:
            if action.type is as_path:
                is_file = "FILE" in str(action.metavar)
                vars(action)["complete"] = shtab.FILE if is_file else shtab.DIRECTORY
            elif isinstance(action.type, Known):
                action.choices = action.type.texts
    script = shtab.complete(top, options.shell)
    if options.json:
        print_json({"shell": options.shell, "script": script})
    else:
        say(script)
    return 0
