# Completion of usher's command lines, for fish. usher itself lists the choices, and starts no module.
function __usher_words
    set -l words (commandline -opc)
    set -l args # the command's arguments, without flags
    set -l base
    set -l dir .
    set -l flag
    for word in $words[3..]
        switch "$flag:$word"
            case '-base:*' '--base:*'
                set base -base $word
                set flag
            case '-dir:*' '--dir:*'
                set dir $word
                set flag
            case ':-json' ':--json'
            case ':-*'
                set flag $word
            case ':*'
                set -a args $word
            case '*'
                set flag
        end
    end
    if string match -q -- '-*' (commandline -ct)
        set -l dashes (commandline -ct | string match -r '^-+')
        usher help $words[2] | string replace -rf -- '^  -([a-z-]+).*' "$dashes\$1"
        return
    end
    if test -n "$flag" # the word is its value
        __fish_complete_path (commandline -ct)
        return
    end
    switch "$words[2]:"(count $args):"$args[1]"
        case ':*' 'help:0:'
            echo help
            usher help | string replace -rf '^  ([a-z]+)  +(.*)' '$1\t$2'
        case 'completion:0:'
            printf '%s\n' bash zsh fish
        case 'claim:0:'
            printf '%s\n' list revoke
        case 'claim:*:revoke'
            usher claim list $base 2>/dev/null | string match -rg '^([0-9A-Z]+-[0-9A-Z]+) '
        case 'call:0:'
            usher modules -cached -json $base $dir 2>/dev/null | string match -rg '^    "label": "([A-Za-z0-9_-]+)",$'
        case 'call:1:*'
            string match -qr '[^A-Za-z0-9_-]' -- $args[1]; and return # not a label, and sed could run it
            usher modules -cached -json $base $dir 2>/dev/null |
                sed -n '/^    "label": "'$args[1]'",$/,/^  }/s/^        "method": "\([A-Za-z0-9_.:/-]*\)".*/\1/p'
        case '*'
            __fish_complete_path (commandline -ct)
    end
end
complete -c usher -f -a '(__usher_words)'
