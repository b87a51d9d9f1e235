# Completion of usher's command lines, for bash and zsh. usher itself lists the
# choices, and starts no module.
if [ -n "$ZSH_VERSION" ]; then
  autoload -Uz compinit bashcompinit
  (( $+functions[compdef] )) || compinit
  bashcompinit
fi

_usher() {
  [ -n "$ZSH_VERSION" ] && emulate -L ksh
  local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} base='' dir=. list='' i
  local -a args
  args=() # the command's arguments, without flags
  for ((i = 2; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
    -json | --json) ;;
    -base | --base) base=${COMP_WORDS[++i]} ;;
    -dir | --dir) dir=${COMP_WORDS[++i]} ;;
    -*) ((i++)) ;;
    *) args+=("${COMP_WORDS[i]}") ;;
    esac
  done
  COMPREPLY=()
  ((COMP_CWORD > 1 && i > COMP_CWORD)) && return # the word is a flag's value
  case $COMP_CWORD:$word:$command:${#args[@]} in
  1:* | *:help:0) list="help $(usher help | sed -n 's/^  \([a-z]*\)  .*/\1/p')" ;;
  *:-*) # with as many dashes as the word
    list=$(usher help "$command" | sed -n 's/^  -\([a-z-]*\).*/'"${word%%[!-]*}"'\1/p')
    ;;
  *:completion:0) list='bash zsh fish' ;;
  *:claim:0) list='list revoke' ;;
  *:claim:*)
    [ "${args[0]}" = revoke ] && list=$(usher claim list -base "$base" 2>/dev/null | sed -n 's/^\([0-9A-Z]*-[0-9A-Z]*\) .*/\1/p')
    ;;
  *:call:0)
    list=$(usher modules -cached -json -base "$base" "$dir" 2>/dev/null | sed -n 's/^    "label": "\([A-Za-z0-9_-]*\)",$/\1/p')
    ;;
  *:call:1)
    [[ ${args[0]} == *[!A-Za-z0-9_-]* ]] && return # not a label, and sed could run it
    list=$(usher modules -cached -json -base "$base" "$dir" 2>/dev/null |
      sed -n '/^    "label": "'"${args[0]}"'",$/,/^  }/s/^        "method": "\([A-Za-z0-9_.:/-]*\)".*/\1/p')
    ;;
  esac
  # compgen expands its list like a text in double quotes. The patterns above admit
  # nothing that a shell could expand, as servers choose the names of their methods.
  COMPREPLY=($(compgen -W "$list" -- "$word"))
}
complete -o default -F _usher usher
