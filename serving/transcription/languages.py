"""Languages that Whisper was trained on: ISO 639 codes, and names in English.

They are those of https://github.com/openai/whisper (whisper/tokenizer.py).
"""

from typing import Final

_TABLE: Final = """
af=afrikaans am=amharic ar=arabic as=assamese az=azerbaijani ba=bashkir be=belarusian bg=bulgarian
bn=bengali bo=tibetan br=breton bs=bosnian ca=catalan cs=czech cy=welsh da=danish de=german el=greek
en=english es=spanish et=estonian eu=basque fa=persian fi=finnish fo=faroese fr=french gl=galician
gu=gujarati ha=hausa haw=hawaiian he=hebrew hi=hindi hr=croatian ht=haitian_creole hu=hungarian hy=armenian
id=indonesian is=icelandic it=italian ja=japanese jw=javanese ka=georgian kk=kazakh km=khmer kn=kannada
ko=korean la=latin lb=luxembourgish ln=lingala lo=lao lt=lithuanian lv=latvian mg=malagasy mi=maori
mk=macedonian ml=malayalam mn=mongolian mr=marathi ms=malay mt=maltese my=myanmar ne=nepali nl=dutch
nn=nynorsk no=norwegian oc=occitan pa=punjabi pl=polish ps=pashto pt=portuguese ro=romanian ru=russian
sa=sanskrit sd=sindhi si=sinhala sk=slovak sl=slovenian sn=shona so=somali sq=albanian sr=serbian
su=sundanese sv=swedish sw=swahili ta=tamil te=telugu tg=tajik th=thai tk=turkmen tl=tagalog tr=turkish
tt=tatar uk=ukrainian ur=urdu uz=uzbek vi=vietnamese yi=yiddish yo=yoruba yue=cantonese zh=chinese
"""
_OTHER_NAMES: Final = """
burmese=my castilian=es flemish=nl haitian=ht letzeburgesch=lb mandarin=zh moldavian=ro moldovan=ro
panjabi=pa pushto=ps sinhalese=si valencian=ca
"""

NAMES: Final = {code: name.replace("_", " ") for code, name in (each.split("=") for each in _TABLE.split())}
"""The name of each code, in lower case."""
CODES: Final = {name: code for code, name in NAMES.items()} | {
    name.replace("_", " "): code for name, code in (each.split("=") for each in _OTHER_NAMES.split())
}
"""The code of each name."""


def code_of(language: str) -> str | None:
    """The code of a language that is given by its code, such as en or en-US, or by its name; None if it is none."""
    name = language.strip().lower()
    code = name.replace("_", "-").partition("-")[0]
    return CODES.get(name) or (code if code in NAMES else None)
